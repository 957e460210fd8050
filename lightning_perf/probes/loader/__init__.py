"""What a loader's batches cost: measured in child processes, on copies."""

from .iterate import iterate_loader, time_pinning
from .prober import LIMIT_S, MIN_LIMIT_S, LoaderProber
from .watch import LoaderWatch

__all__ = ["LIMIT_S", "MIN_LIMIT_S", "LoaderProber", "LoaderWatch", "iterate_loader", "time_pinning"]
