"""How many random and repeated cases are tried, by the variable ``FUZZ``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FUZZ = int(os.environ.get("FUZZ", "1"))
"""Times as many random examples: ``make torture`` sets it."""

IS_TORTURE = "FUZZ" in os.environ
"""Whether ``make torture`` runs."""


def thinned(kept: Sequence[T], rest: Sequence[T]) -> list[T]:
    """Return the cases of a test: some that represent the others in ``make test``, all in ``make torture``."""
    return [*kept, *rest] if IS_TORTURE else [*kept]
