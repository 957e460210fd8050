"""How reports write seconds, shares, bytes and gains, and how they make untrusted text safe to show.

Figures are written with non-ASCII signs (``µs``, ``–``, ``≤``); ``fit_encoding`` replaces them where the
output cannot show them.
"""

import codecs
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from lightning_perf.records import Evidence, Finding, Gain, Interval
from lightning_perf.records.text import clean
from lightning_perf.rules.wording import is_negligible, speedup

T = TypeVar("T")

UNKNOWN = "n/a"
ELLIPSIS = "…"

TOO_WIDE = 20
"""An interval whose ends differ by this factor is too wide to show."""

_ASCII_SIGNS = {
    "×": "x",
    "–": "-",
    "—": "-",
    "−": "-",
    "÷": "/",
    "µ": "u",
    "μ": "u",
    "·": "|",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "→": "->",
    "█": "#",
    "▏": "|",
    "▇": "#",
}

# A unit is left at 999.5, where three digits would round to 1000.
_UNITS = (
    (999.5e-9, 1e9, "ns"),
    (999.5e-6, 1e6, "µs"),
    (999.5e-3, 1e3, "ms"),
    (1e4, 1.0, "s"),
    (math.inf, 1 / 3600, "h"),
)

_TRAILING_ZEROS = re.compile(r"\.0+(?=\D|$)")


def seconds(value: float | None) -> str:
    """Format a duration in seconds with three significant digits: ``12.3 ms``, ``2 min 03 s``, ``1 h 02 min``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size = abs(value)
    if size == 0:
        return "0 s"
    if size >= 59.5:
        return "-" * (value < 0) + _minutes(size)
    factor, unit = next((f, u) for limit, f, u in _UNITS if size < limit)
    return f"{_three_digits(value * factor)} {unit}"


def seconds_column(values: Sequence[float | None]) -> list[str]:
    """Format durations in seconds, three digits each, with one unit that suits the largest; None becomes empty."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    largest = max(map(abs, finite), default=0.0)
    factor, unit = next((f, u) for limit, f, u in _UNITS if largest < limit)
    return [
        "" if value is None else f"{_rounded(value * factor)} {unit}" if math.isfinite(value) else UNKNOWN
        for value in values
    ]


def share(value: float | None, decimals: int | None = None) -> str:
    """Format a fraction as percent: ``54 %``, ``0.3 %``; ``decimals`` fixes their number, for columns."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    percent = value * 100
    if decimals is None:
        if 0 < percent < 0.05:
            return "<0.1 %"
        decimals = 0 if percent == 0 or abs(percent) >= 9.95 else 1
    return f"{percent:,.{decimals}f} %"


def size(value: float | None) -> str:
    """Format a number of bytes: ``1.50 GiB``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 999.5:
            return f"{_three_digits(amount)} {unit}" if unit != "B" else f"{amount:.0f} B"
        amount /= 1024
    return f"{_three_digits(amount)} TiB"


def number(value: float | None) -> str:
    """Format a number without a unit: with thousands separators, small ones with three significant digits."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == int(value) or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return _three_digits(value)


def count(n: int, noun: str) -> str:
    """Format a number with its noun: ``1 step``, ``1,234 steps``, ``2 batches``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}{'es' if noun.endswith('batch') else 's'}"


def gain(value: Gain | None) -> str:
    """Return the expected speedup: ``1.7–2.1x``, ``up to 2.1x`` if it may be none or was modeled; empty below 2 %."""
    if value is None or not (math.isfinite(value.low) and math.isfinite(value.high)) or is_negligible(value):
        return ""
    return speedup(value)


def certainty(finding: Finding) -> str:
    """Return how certain the diagnosis of a finding is, in one word."""
    return {"high": "certain", "medium": "likely", "low": "possible"}[finding.confidence]


def times(value: float) -> str:
    """Return a ratio with three digits: ``1.50x``, ``12.3x``."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:.2f}x" if abs(value) < 9.995 else f"{value:.1f}x" if abs(value) < 99.95 else f"{value:,.0f}x"


def interval_text(interval: Interval) -> str:
    """Return a confidence interval: ``1.80–1.86``."""
    if interval.high > TOO_WIDE * interval.low:
        return "unknown"
    return f"{times(interval.low)[:-1]}–{times(interval.high)[:-1]}"


def speedup_text(interval: Interval | None) -> str:
    """Return a measured speedup with its confidence interval: ``1.83x (1.80–1.86)``; empty without one."""
    return "" if interval is None else f"{times(interval.value)} ({interval_text(interval)})"


def evidence_basis(evidence: Evidence) -> str:
    """Format the threshold and the number of observations, ``limit 20 %, n 400``; empty without either."""
    parts = []
    if evidence.threshold is not None:
        # Thresholds are round numbers: 5 % and 5 ms, not 5.0 % and 5.00 ms.
        parts.append("limit " + _TRAILING_ZEROS.sub("", quantity(evidence.threshold, evidence.unit)))
    if evidence.n is not None:
        parts.append(f"n {evidence.n:,}")
    return ", ".join(parts)


def quantity(value: float | int | str | bool, unit: str) -> str:
    """Format a value in the unit of an ``Evidence``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return line(value)
    if unit == "s":
        return seconds(value)
    if unit == "us":
        return seconds(value * 1e-6)
    if unit in ("fraction", "share"):
        return share(value)
    if unit == "bytes":
        return size(value)
    if unit == "ratio":
        return f"{number(value)}x"
    if unit in ("", "count"):
        return number(value)
    return f"{number(value)} {line(unit, 24)}"


def known(value: T | None, write: Callable[[T], str]) -> str:
    """Return the text that ``write`` makes of a value; empty for None."""
    return "" if value is None else write(value)


def phase_name(name: str) -> str:
    """Return the name of a phase in reports: ``data wait``."""
    return line(name.replace("_", " "), 32)


def kernel_name(name: str) -> str:
    """Return a kernel's name without the parts that most kernel names share."""
    for common in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(common, "")
    return name


def line(text: str, limit: int = 200) -> str:
    """Return untrusted text as one line: without control characters, blanks collapsed, cut at ``limit`` characters."""
    return cut(" ".join(clean(text[: 4 * limit]).split()), limit)


def block(text: str, max_lines: int = 40) -> list[str]:
    """Return untrusted text as lines, e.g. code: without control characters, tabs as four blanks, lines cut at 400."""
    lines = clean(text).strip("\n").split("\n")
    shown = [cut(one.expandtabs(4).rstrip(), 400) for one in lines[:max_lines]]
    if len(lines) > max_lines:
        shown.append(f"# {ELLIPSIS} {count(len(lines) - max_lines, 'more line')}")
    return shown if shown != [""] else []


def cut(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of a text."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + ELLIPSIS


def short_path(path: str) -> str:
    """Return a path relative to the current folder if it lies below; other paths, and URLs, as they are.

    If the program has changed its folder, the path is absolute: the reader's shell is still in ``PWD``.
    """
    if "://" in path:
        return path
    try:
        below = os.path.relpath(path)
        if not os.path.samefile(os.environ.get("PWD") or os.curdir, os.curdir):
            return os.path.abspath(path)
    except (OSError, ValueError):  # no current folder, or another drive
        return path
    return path if below.startswith("..") else below


def fit_encoding(text: str, encoding: str | None) -> str:
    """Replace characters that the encoding lacks: ``–`` by ``-``, those without an equivalent by ``?``."""
    encoding = encoding or "ascii"
    try:
        return text.encode(encoding, _ERRORS).decode(encoding)
    except LookupError:
        return fit_encoding(text, "ascii")


def _ascii_signs(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


_ERRORS = "lightning_perf.ascii_signs"
codecs.register_error(_ERRORS, _ascii_signs)


def _minutes(value: float) -> str:
    total = round(value)
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    total = round(value / 60)
    return f"{total // 60:,} h {total % 60:02d} min"


def _three_digits(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 0.01 else _rounded(value)


def _rounded(value: float) -> str:
    """Return a number with three significant digits, at most two of them decimals."""
    size = abs(value)
    return f"{value:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"
