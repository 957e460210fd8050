"""Describe hangs: times in which nothing in a training moves."""

from .watch import HangWatch

__all__ = ["HangWatch"]
