"""Measure the cost of a loader's batches, on copies in child processes."""

from .iterate import iterate_loader, time_pinning
from .prober import LIMIT_S, MIN_LIMIT_S, LoaderProber
from .watch import LoaderWatch

__all__ = ["LIMIT_S", "MIN_LIMIT_S", "LoaderProber", "LoaderWatch", "iterate_loader", "time_pinning"]
