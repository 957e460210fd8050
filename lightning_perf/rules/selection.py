"""Which rules to run: codes and prefixes of codes, read as ruff reads them (the longest match decides)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from lightning_perf.errors import ConfigError

EVERYTHING = "PD"


def check_known(argument: str, patterns: Sequence[str] | None, codes: Collection[str]) -> None:
    """Raise an error for patterns that select no rule.

    Args:
        argument: ``"select"`` or ``"ignore"``, for the message.
        patterns: Codes or prefixes as the user gave them; None is fine.
        codes: The codes of all rules.

    Raises:
        ConfigError: It is not a list of strings, or one of them starts no code.
    """
    accepted = 'a code such as "PD101", or a prefix such as "PD1" (a category) or "PD" (all)'
    if patterns is None:
        return
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise ConfigError(f"{argument}={patterns!r} is not a list; expected a list of strings, each {accepted}")
    for pattern in patterns:
        if isinstance(pattern, str) and len(pattern) >= len(EVERYTHING):
            if any(code.startswith(pattern) for code in codes):
                continue
            close = difflib.get_close_matches(pattern.upper(), _known(codes), n=3)
        else:
            close = []
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ConfigError(f"{argument} holds {pattern!r}, which starts no rule's code; expected {accepted}.{hint}")


def is_selected(code: str, select: Sequence[str] | None, ignore: Sequence[str] | None) -> bool:
    """Return whether a rule runs: the longest matching pattern decides; ``ignore`` wins a tie."""
    wanted = _longest(code, (EVERYTHING,) if select is None else select)
    return wanted > _longest(code, ignore or ())


def _known(codes: Collection[str]) -> list[str]:
    return sorted({*codes, *(code[:3] for code in codes), EVERYTHING})


def _longest(code: str, patterns: Sequence[str]) -> int:
    return max((len(pattern) for pattern in patterns if code.startswith(pattern)), default=0)
