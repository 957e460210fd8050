"""Treatments: the changes that findings recommend, how users write them, and how they are applied to a run."""
