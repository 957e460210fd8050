"""Trace single steps: operators, lines of code, results that are known or not needed."""
