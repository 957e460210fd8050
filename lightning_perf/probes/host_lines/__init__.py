"""Find the lines of user code on which the training thread spends its time."""
