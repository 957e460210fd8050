"""Report hangs: times in which a training makes no progress."""
