"""Checks of arguments that need no torch; errors say what was received and what was expected."""

import math
from collections.abc import Callable
from typing import Any

from lightning_perf.errors import ConfigError

Check = tuple[Callable[[Any], bool], str]
"""Whether a value can be used, and what is expected."""


def is_list_of(value: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(map(is_valid, value))


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def whole(least: int, or_none: bool = False) -> Check:
    expected = f"a whole number of at least {least}" + (" or None" if or_none else "")
    return lambda v: (or_none and v is None) or (is_whole(v) and v >= least), expected


FLAG: Check = (lambda v: isinstance(v, bool), "True or False")


def checked(name: str, value: Any, check: Check) -> Any:
    """Return a value that can be used, a list as a tuple."""
    is_valid, expected = check
    if not is_valid(value):
        raise ConfigError(f"{name}={value!r}: expected {expected}")
    return tuple(value) if isinstance(value, list) else value


def checked_number(name: str, value: Any, expected: str, least: float = 0.0) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise ConfigError(f"{name}={value!r}: expected {expected}")
    return float(value)
