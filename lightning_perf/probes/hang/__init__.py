"""Report hangs: times in which a training makes no progress."""

from .watch import HangWatch

__all__ = ["HangWatch"]
