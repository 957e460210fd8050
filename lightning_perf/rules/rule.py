"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lightning_perf.records import Finding, Hypothesis, Session

EXPLAINED_SHARE = 0.5
"""A cause that accounts for most of what a symptom claims explains it."""


class Skip(Exception):
    """Raised by a check when the session lacks a signal that the rule needs; the message says which and why."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnosis.

    Attributes:
        code: ``"PD101"``; never reused.
        name: Reads as "allow <name>", e.g. ``"starved-by-loader"``.
        category: The folder it stands in.
        docs: Markdown with the headings What it measures, Why it costs, Example, Prescription, When it is wrong,
            Sources.
        check: Reads a session; a finding, or None when there is nothing to say. Raises Skip.
        preflight: The same from settings alone, before the first step; None where that cannot be.
        hypothesis: What to replay before ``check`` can promise a speedup; None for a rule that needs no replay. Returns
            None where its symptom is absent, and may raise Skip.
        only_unexplained: Its finding is a symptom: it is dropped where another rule's finding explains lost time.
        yields_its_time: Its finding says when time is lost, not to what: it is dropped where findings of others claim
            at least half of the time that it claims.
        explains: Codes whose findings this rule's finding is the cause of. Where it claims about as much time, it is
            placed right before them: both claim the same time, and the cause is what one wants to read first.
        weakens: Whether this rule's finding lowers the confidence of another one; None where it lowers none.
    """

    code: str
    name: str
    category: str
    docs: str
    check: Callable[[Session], Finding | None]
    preflight: Callable[[Session], Finding | None] | None = None
    hypothesis: Callable[[Session], Hypothesis | None] | None = None
    weakens: Callable[[Finding], bool] | None = None
    only_unexplained: bool = False
    yields_its_time: bool = False
    explains: tuple[str, ...] = ()
