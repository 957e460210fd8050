"""Keep earlier runs of each training in one SQLite file of the user's; needs neither torch nor lightning."""
