"""What a loader's batches cost: measured in child processes, on copies."""

from .in_process import InProcessCost
from .passing import time_passing, time_pinning
from .prober import LIMIT_S, MIN_LIMIT_S, LoaderProber
from .watch import LoaderWatch

__all__ = ["LIMIT_S", "MIN_LIMIT_S", "InProcessCost", "LoaderProber", "LoaderWatch", "time_passing", "time_pinning"]
