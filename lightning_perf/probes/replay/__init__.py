"""Measure what a treatment would do to this step's operators, by running them again on random tensors."""
