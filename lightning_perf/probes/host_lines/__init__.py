"""Finds the line of the user's code in which each second of the training thread passes."""

from .sampler import LineSampler, current_phase

__all__ = ["LineSampler", "current_phase"]
