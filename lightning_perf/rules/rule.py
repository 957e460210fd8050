"""The rule record, and the decorator that declares one."""

import pkgutil
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import msgspec

from lightning_perf.records import Finding, Hypothesis, Session

Check: TypeAlias = Callable[[Session], Finding | None]

Value = TypeVar("Value")


class Skip(Exception):
    """Raised by a check if the session lacks a measurement that the rule needs; the message says which and why."""


def required(value: Value | None, reason: str) -> Value:
    """Return a value that a rule needs; raise Skip with the reason if it is None."""
    if value is None:
        raise Skip(reason)
    return value


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnosis.

    Attributes:
        code: Code such as ``"PD101"``; never reused.
        name: Name such as ``"starved-by-loader"``.
        category: Name of the folder of its module.
        check: Returns the finding of a session, or None. May raise Skip. The documentation of the rule is the Markdown
            file with the name of its module.
        preflight: Returns the finding from settings alone, before the first step; None for a rule that needs
            measurements.
        hypothesis: Returns the treatment to replay before ``check`` can expect a speedup, or None if the symptom is
            absent. May raise Skip. None for a rule that needs no replay.
        needs_phase: Phase that must have been timed; the rule is skipped where the session says why it is missing.
        only_unexplained: Whether the finding is a symptom: it is dropped if another finding explains lost time.
        yields_its_time: Whether the finding shows when time is lost, not why: it is dropped if other findings claim at
            least half of its time.
        explains: Codes of findings that the finding of this rule causes. It is ranked right before the first of them if
            it claims at least half as much time and is no less severe or certain.
        yields_to: Codes of findings that cause this one. Such a cause, if as severe or if it saves at least half as
            much for certain, is ranked before it if it claims at least half of its time and, in addition, other time
            of at least half as much, or a gain whose lower end is at least the upper end of this one's.
        lowers_precision: Whether the fix computes in a lower precision. Findings of the same severity whose fixes save
            computing or waiting come first.
        weakens: Returns whether the finding of this rule lowers the confidence of another; None if it lowers none.
        is_host_time: Whether the finding is about time of the host between launches, which on a device may be a wait
            for it, or overlap with it: its certain gain is limited to the time in which the device is idle.
        line_of: Phases of which the finding names the user's line that takes most time; empty for the phases that it
            claims. None if it names no line.
    """

    code: str
    name: str
    category: str
    check: Check
    preflight: Check | None = None
    hypothesis: Callable[[Session], Hypothesis | None] | None = None
    weakens: Callable[[Finding], bool] | None = None
    needs_phase: str = ""
    only_unexplained: bool = False
    yields_its_time: bool = False
    explains: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()
    lowers_precision: bool = False
    is_host_time: bool = False
    line_of: tuple[str, ...] | None = None

    @property
    def docs(self) -> str:
        """The documentation as Markdown, with the same six sections for every rule."""
        package, _, name = self.check.__module__.rpartition(".")
        return (pkgutil.get_data(package, f"{name}.md") or b"").decode()


def rule(code: str, name: str, **options: Any) -> Callable[[Check], Rule]:
    """Declare a rule by decorating its check; ``options`` are fields of ``Rule``.

    The folder of the module is the category; the Markdown file of the same name is the documentation.
    """

    def declare(check: Check) -> Rule:
        return Rule(code=code, name=name, category=check.__module__.split(".")[-2], check=check, **options)

    return declare
