"""A rule."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from lightning_perf.records import Finding, Hypothesis, Session

Check: TypeAlias = Callable[[Session], Finding | None]


class Skip(Exception):
    """Raised by a check when the session lacks a signal that the rule needs; the message says which and why."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnosis.

    Attributes:
        code: ``"PD101"``; never reused.
        name: Reads as "allow <name>", e.g. ``"starved-by-loader"``.
        category: The name of its folder.
        check: Return the finding of a session, or None. Raises Skip.
        module: Where it is declared; its documentation is the Markdown file beside it.
        preflight: The same from settings alone, before the first step; None for a rule that needs measurements.
        hypothesis: What to replay before ``check`` can promise a speedup; None for a rule that needs no replay. Returns
            None where its symptom is absent, and may raise Skip.
        only_unexplained: Its finding is a symptom: it is dropped if another rule's finding explains lost time.
        yields_its_time: Its finding says when time is lost, not why: it is dropped if other findings claim at least
            half of the time that it claims.
        explains: Codes of the findings that this rule's finding is the cause of. It is placed right before them if it
            claims about as much time.
        weakens: Whether this rule's finding lowers the confidence of another one; None if it lowers none.
    """

    code: str
    name: str
    category: str
    check: Check
    module: str = ""
    preflight: Check | None = None
    hypothesis: Callable[[Session], Hypothesis | None] | None = None
    weakens: Callable[[Finding], bool] | None = None
    only_unexplained: bool = False
    yields_its_time: bool = False
    explains: tuple[str, ...] = ()

    @property
    def docs(self) -> str:
        """The documentation as Markdown; each rule's has the same six sections."""
        package, _, name = self.module.rpartition(".")
        return (pkgutil.get_data(package, f"{name}.md") or b"").decode()

    def sign(self, finding: Finding | None) -> Finding | None:
        """Return a finding of this rule with its code, name and category, if it has none."""
        if finding is None or finding.code:
            return finding
        return msgspec.structs.replace(finding, code=self.code, name=self.name, category=self.category)


def rule(
    code: str,
    name: str,
    *,
    preflight: Check | None = None,
    hypothesis: Callable[[Session], Hypothesis | None] | None = None,
    weakens: Callable[[Finding], bool] | None = None,
    only_unexplained: bool = False,
    yields_its_time: bool = False,
    explains: tuple[str, ...] = (),
) -> Callable[[Check], Rule]:
    """Declare a rule by decorating its check: the module's folder is the category. The arguments are those of ``Rule``.

    The documentation is the Markdown file beside the module, of the same name.
    """

    def declare(check: Check) -> Rule:
        return Rule(
            code=code,
            name=name,
            category=check.__module__.split(".")[-2],
            check=check,
            module=check.__module__,
            preflight=preflight,
            hypothesis=hypothesis,
            weakens=weakens,
            only_unexplained=only_unexplained,
            yields_its_time=yields_its_time,
            explains=explains,
        )

    return declare
