"""Find the lines of user code on which the training thread spends its time."""

from .sampler import LineSampler, current_phase

__all__ = ["LineSampler", "current_phase"]
