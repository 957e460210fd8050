"""Measure the cost of a loader's batches, on copies in child processes."""
