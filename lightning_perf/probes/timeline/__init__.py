"""Time the loop: its phases, steps, stages and epochs."""
