"""Earlier runs of the same training, in one SQLite file of the user's; needs neither torch nor lightning."""
