"""Compare ranks by their own work and their waits for others, combined on rank 0 without a collective."""
