"""What a loader's batches cost: measured in child processes, on copies."""

from .in_process import InProcessCost
from .prober import LIMIT_S, LoaderProber

__all__ = ["LIMIT_S", "InProcessCost", "LoaderProber"]
