"""Measure memory: by phase, by content, its growth, and when it runs out."""
