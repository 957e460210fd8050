"""How much is tried beyond what ``make test`` has time for."""

from __future__ import annotations

import os

FUZZ = int(os.environ.get("FUZZ", "1"))
"""Times as many random examples: ``make torture`` sets it."""
