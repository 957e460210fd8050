"""What a loader's batches cost: measured in child processes, on copies."""

from .in_process import InProcessCost

__all__ = ["InProcessCost"]
