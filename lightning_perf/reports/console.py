"""The diagnosis on a terminal: a short one at the end of an epoch, the full one at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from lightning_perf.records import Comparison, Epoch, Finding, Session, Trial

from . import summary, wording
from .page import Page
from .terminal import emit, to_text

__all__ = [
    "ComparisonReport",
    "EpochReport",
    "PreflightReport",
    "RunReport",
    "TrialReport",
    "comparison_report",
    "emit",
    "epoch_report",
    "preflight_report",
    "run_report",
    "to_text",
    "trial_report",
]

EPOCH_FINDINGS = 3
"""Findings that an epoch's report tells in full; the run's report has them all."""


def epoch_report(session: Session, epoch_index: int, previous: Session | None = None) -> EpochReport:
    """The short diagnosis at the end of an epoch, to be given to ``emit``.

    Args:
        session: With findings and verdict up to now.
        epoch_index: ``Epoch.index`` of the epoch that ended.
        previous: The session as it was reported last time; what it found already is only named. None at first.
    """
    return EpochReport(session, epoch_index, previous)


def run_report(session: Session, show_all: bool = False) -> RunReport:
    """The full diagnosis of a run, to be given to ``emit``.

    Args:
        session: The session.
        show_all: Also say of each rule whether it passed or why it was skipped.
    """
    return RunReport(session, show_all)


def preflight_report(findings: Sequence[Finding]) -> PreflightReport:
    """What the settings alone make likely, said before the first step, to be given to ``emit``.

    Args:
        findings: Not empty.
    """
    return PreflightReport(findings)


def trial_report(trial: Trial) -> TrialReport:
    """The ladder of a trial, to be given to ``emit``; ends with what to paste."""
    return TrialReport(trial)


def comparison_report(comparison: Comparison) -> ComparisonReport:
    """Two sessions beside each other, to be given to ``emit``."""
    return ComparisonReport(comparison)


class RunReport:
    """Draws a whole session; adapts to the console's width and encoding."""

    def __init__(self, session: Session, show_all: bool = False) -> None:
        self._session = session
        self._show_all = show_all

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        session, page = self._session, Page(options)
        yield page.verdict(session)
        yield page.facts(summary.run_facts(session))
        if session.steady is not None:
            title = summary.steady_title(session, session.steady)
            yield from page.stage(title, session.steady, summary.step_word(session))
        if session.validation is not None:
            yield from page.stage(summary.validation_title(session.validation), session.validation, "batch")
        yield from page.ranks(session)
        yield from page.loader(session)
        yield from page.memory(session)
        if session.model_profile is not None:
            yield from page.model_profile(session.model_profile, session.run.stage == "fit")
        yield from page.host(session)
        findings = summary.ordered_findings(session)
        if findings:
            yield page.title("Findings")
        for i, finding in enumerate(findings):
            if i:
                yield Text("")
            yield from page.finding(finding)
        for trial in session.trials:
            yield from page.trial(trial)
        yield from page.footer(session, self._show_all)


class TrialReport:
    """Draws one trial; adapts to the console's width and encoding."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from Page(options).trial(self._trial)


class ComparisonReport:
    """Draws a comparison; adapts to the console's width and encoding."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from Page(options).comparison(self._comparison)


class EpochReport:
    """Draws one epoch in a few lines; adapts to the console's width and encoding."""

    def __init__(self, session: Session, epoch_index: int, previous: Session | None = None) -> None:
        self._session = session
        self._epoch = next((e for e in session.epochs if e.index == epoch_index), None)
        self._index = epoch_index
        self._known = {(f.code, f.severity) for f in previous.findings} if previous is not None else set()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        page = Page(options)
        yield page.verdict(self._session)
        yield page.facts(self._facts(self._epoch))
        if self._epoch is not None:
            rows = summary.phase_rows(self._epoch.phases, self._epoch.wall_s)
            yield from page.breakdown(rows, has_p50=False)
        findings = summary.ordered_findings(self._session)
        new = [f for f in findings if (f.code, f.severity) not in self._known]
        for finding in new[:EPOCH_FINDINGS]:
            yield from page.short_finding(finding)
        if len(new) > EPOCH_FINDINGS:
            yield page.quiet("also: " + _named(new[EPOCH_FINDINGS:]))
        as_before = [f for f in findings if (f.code, f.severity) in self._known]
        if as_before:
            yield page.quiet("as before: " + _named(as_before))

    def _facts(self, epoch: Epoch | None) -> list[str]:
        facts = [f"epoch {self._index}"]
        if epoch is None:
            return facts
        facts += [wording.count(epoch.n_steps, "step"), wording.seconds(epoch.wall_s)]
        if epoch.step_p50_s is not None:
            facts.append(f"{wording.seconds(epoch.step_p50_s)} a step (p50)")
        if epoch.samples is not None and epoch.wall_s > 0:
            facts.append(f"{wording.number(round(epoch.samples / epoch.wall_s, 1))} samples/s")
        return facts


class PreflightReport:
    """Draws findings that rest on settings alone; adapts to the console's width and encoding."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        page = Page(options)
        yield page.text(
            f"PerfDoctor: before the first step, {wording.count(len(self._findings), 'setting')} worth a look", "bold"
        )
        for finding in self._findings[:EPOCH_FINDINGS]:
            yield from page.short_finding(finding)
        if len(self._findings) > EPOCH_FINDINGS:
            yield page.quiet("also: " + _named(self._findings[EPOCH_FINDINGS:]))


def _named(findings: Sequence[Finding]) -> str:
    return ", ".join(f"{summary.finding_title(finding)} ({finding.severity})" for finding in findings)
