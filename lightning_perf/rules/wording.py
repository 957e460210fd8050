"""Formatting of numbers and places in the texts of findings."""

import ast
import math
import re
from collections.abc import Callable
from typing import TypeAlias

from lightning_perf.records import (
    AskedCollection,
    AttentionCall,
    Gain,
    GraphBreak,
    HostLine,
    Recompile,
    SyncCall,
    TensorLoop,
)

from .thresholds import LOW_SHARE

Line: TypeAlias = AskedCollection | AttentionCall | GraphBreak | HostLine | Recompile | SyncCall | TensorLoop
"""A record of a line of code: it has ``file``, ``line`` and ``function``."""


def percent(fraction: float) -> str:
    """Return a fraction as percent: ``"54 %"``, ``"3.2 %"`` below ten."""
    value = 100 * fraction
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def three_digits(value: float) -> str:
    """Return a number with three digits, from 1,000 on with more: ``"1.25"``, ``"1,800"``, not ``"1.8e+03"``."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def number_of(n: float, what: str, plural: str = "") -> str:
    """Return a number with its noun: ``"1 step"``, ``"12 steps"``, ``"1.5 steps"``."""
    return f"{f'{n:,}' if isinstance(n, int) else three_digits(n)} {what if n == 1 else plural or what + 's'}"


def called(n: int) -> str:
    """Return a number of calls: ``"once"``, ``"12 times"``."""
    return "once" if n == 1 else f"{n:,} times"


def duration(seconds: float) -> str:
    """Return a time with a suitable unit: ``"320 µs"``, ``"12.5 ms"``, ``"3.2 s"``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{three_digits(seconds)} s" if seconds >= 0.9995 else f"{three_digits(seconds * 1e3)} ms"


def size_text(n_bytes: float) -> str:
    """Return bytes with a suitable unit: ``"1.5 GiB"``."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(n_bytes) >= factor:
            return f"{three_digits(n_bytes / factor)} {unit}"
    return f"{n_bytes:.0f} B"


def speedup(gain: Gain) -> str:
    """Return an expected speedup: ``"1.7–2.1x"``, or ``"up to 2.1x"`` if it is not certain or was only modeled.

    The lower end is rounded down and the upper end up, so that the text promises no more than the interval.
    """
    decimals = 1 if gain.high >= 1.5 and not 1.0 < gain.low < 1.2 else 2
    low, high = _rounded(gain.low, decimals, math.floor), _rounded(gain.high, decimals, math.ceil)
    if float(low) <= 1 or gain.method == "modeled":
        return f"up to {high}x" if float(high) > 1 else f"{high}x"
    return f"{low}–{high}x" if low != high else f"{high}x"


def _rounded(value: float, decimals: int, to_whole: Callable[[float], int]) -> str:
    """Return a speedup with decimals, none from 10 on; a float such as 1.7 counts as written."""
    decimals = 0 if value >= 10 else decimals
    return f"{to_whole(round(value * 10**decimals, 6)) / 10**decimals:.{decimals}f}"


def is_negligible(gain: Gain) -> bool:
    """Return whether a fix would save less than 2 % at most: no report shows such a speedup."""
    return gain.high * (1 - LOW_SHARE) < 1


def headline_of(summary: str) -> str:
    """Return the first sentence of a finding's summary, without its full stop; ``e.g.`` ends none."""
    return re.split(r"(?<!\be\.g)\. ", summary, maxsplit=1)[0].rstrip(".")


def statement_of(code: str) -> str:
    """Return a line of code that can be moved into an ``if``; ``...`` for part of a statement, several, or none.

    A comment says that what uses the names that it assigns must be moved too.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):
        return "..."
    if len(body) != 1 or not isinstance(body[0], (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return "..."
    stored = (node for node in ast.walk(body[0]) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    names = ", ".join(dict.fromkeys(node.id for node in stored))
    return f"{code}  # and what uses {names}" if names else code


def place(function: str, site: str) -> str:
    """Return a function with its file and line: ``"training_step (model.py:81)"``; either may be empty."""
    if not site:
        return function or "an unknown line"
    return f"{function} ({site})" if function else site


def place_of(code: Line) -> str:
    """Return the place of a line of code, as ``place`` does."""
    return place(code.function, site_of(code.file, code.line))


def site_of(file: str, line: int) -> str:
    """Return the name of a file with a line: ``"model.py:81"``; empty for no path."""
    parts = [part for part in file.replace("\\", "/").split("/") if part]
    return f"{parts[-1]}:{line}" if parts else ""


def spent_waiting(share: float) -> str:
    """Return the headline of a data finding: ``"60 % of training time is spent waiting for data"``."""
    return f"{percent(share)} of training time is spent waiting for data"
