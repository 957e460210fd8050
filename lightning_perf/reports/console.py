"""The diagnosis on a terminal: a short one at the end of an epoch, the full one at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lightning_perf.records import Epoch, Evidence, Finding, Session, StageTimes

from . import summary, wording
from .summary import PhaseRow
from .terminal import emit, to_text

__all__ = [
    "EpochReport",
    "PreflightReport",
    "RunReport",
    "emit",
    "epoch_report",
    "preflight_report",
    "run_report",
    "to_text",
]

EPOCH_FINDINGS = 3
"""Findings that an epoch's report tells in full; the run's report has them all."""

_NARROW = 70
_WIDEST = 100
_BAR = {False: 30, True: 14}
_SEVERITY_STYLES = {"high": "bold red", "medium": "bold yellow", "low": "bold cyan", "info": "bold"}
_QUIET = "dim"
_INDENT = 8


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


class RunReport:
    """Draws a whole session; adapts to the console's width and encoding."""

    def __init__(self, session: Session, show_all: bool = False) -> None:
        self._session = session
        self._show_all = show_all

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        session, page = self._session, _Page(options)
        yield page.verdict(session)
        yield page.facts(summary.run_facts(session))
        if session.steady is not None:
            word = summary.step_word(session)
            yield from page.stage(f"Where the time goes: {wording.count(session.steady.n_steps, f'steady {word}')} "
                                  f"in {wording.seconds(session.steady.span_s)}", session.steady, word)  # fmt: skip
        if session.validation is not None:
            what = wording.count(session.validation.n_steps, "batch")
            title = f"Validation: {what} in {wording.seconds(session.validation.span_s)}"
            yield from page.stage(title, session.validation, "batch")
        findings = summary.ordered_findings(session)
        if findings:
            yield page.title("Findings")
        for i, finding in enumerate(findings):
            if i:
                yield Text("")
            yield from page.finding(finding)
        yield from page.footer(session, self._show_all)


class EpochReport:
    """Draws one epoch in a few lines; adapts to the console's width and encoding."""

    def __init__(self, session: Session, epoch_index: int, previous: Session | None = None) -> None:
        self._session = session
        self._epoch = next((e for e in session.epochs if e.index == epoch_index), None)
        self._index = epoch_index
        self._known = {(f.code, f.severity) for f in previous.findings} if previous is not None else set()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        page = _Page(options)
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
        page = _Page(options)
        yield page.text(
            f"PerfDoctor: before the first step, {wording.count(len(self._findings), 'setting')} worth a look", "bold"
        )
        for finding in self._findings[:EPOCH_FINDINGS]:
            yield from page.short_finding(finding)
        if len(self._findings) > EPOCH_FINDINGS:
            yield page.quiet("also: " + _named(self._findings[EPOCH_FINDINGS:]))


class _Page:
    """The parts that reports are made of, for one width and encoding. Builds Text only: nothing is read as markup."""

    def __init__(self, options: ConsoleOptions) -> None:
        self._encoding = options.encoding
        self._width = min(options.max_width, _WIDEST)
        self._is_narrow = self._width < _NARROW

    def text(self, content: str, style: str = "") -> Text:
        return Text(wording.fit_encoding(content, self._encoding), style=style, overflow="fold")

    def title(self, content: str) -> Text:
        return Text.assemble("\n", self.text(content, "bold"))

    def quiet(self, content: str) -> RenderableType:
        return self._indented(self.text(content, _QUIET), 0)

    def facts(self, facts: list[str]) -> RenderableType:
        # Broken between facts only, never inside one.
        lines = [facts[0]]
        for fact in facts[1:]:
            longer = f"{lines[-1]} · {fact}"
            if cell_len(longer) <= self._width:
                lines[-1] = longer
            else:
                lines.append(fact)
        return self.quiet("\n".join(lines))

    def verdict(self, session: Session) -> RenderableType:
        severity = next((f.severity for f in session.findings if f.code == session.verdict.code), None)
        style = {"healthy": "bold green", "unknown": "bold"}.get(session.verdict.category, "bold")
        if severity is not None:
            style = _SEVERITY_STYLES[severity]
        label = self.text("PerfDoctor: ", "bold")
        return self._indented(Text.assemble(label, self.text(summary.verdict_text(session), style)), 0)

    def stage(self, title: str, stage: StageTimes, word: str) -> Iterator[RenderableType]:
        yield self.title(title)
        yield self.facts(summary.rate_facts(stage, word))
        device = summary.device_fact(stage)
        if device:
            yield self.quiet(device)
        yield from self.breakdown(summary.stage_rows(stage), has_p50=True, word=word)

    def breakdown(self, rows: list[PhaseRow], has_p50: bool, word: str = "step") -> Iterator[RenderableType]:
        if not rows:
            return
        width = _BAR[self._is_narrow]
        grid = self._grid("left", "left", "right", "right", *(["right"] if has_p50 else []))
        if has_p50:
            grid.add_row(*(self.text(head, _QUIET) for head in ("", "", "share", "total", f"p50 a {word}")))
        totals = wording.seconds_column([row.total_s for row in rows])
        p50s = wording.seconds_column([row.p50_s for row in rows])
        for row, (start, length), total, p50 in zip(rows, summary.bar_spans(rows, width), totals, p50s, strict=True):
            bar = (" " * min(start, width - 1) + ("█" * length or "▏")).ljust(width)
            figures = [wording.share(row.share, decimals=1), total, *([p50] if has_p50 else [])]
            grid.add_row(self.text(row.name), self.text(bar, "cyan"), *(self.text(figure) for figure in figures))
        yield Constrain(grid, self._width)

    def finding(self, finding: Finding) -> Iterator[RenderableType]:
        yield self._heading(finding, f"confidence {finding.confidence}", _QUIET)
        yield self._indented(self.text(wording.line(finding.summary, 600)))
        if finding.evidence:
            yield self._evidence(finding.evidence)
        for prescription in finding.prescriptions:
            kind = f"({prescription.effort}, {prescription.safety})"
            yield self._labelled("fix", f"{wording.line(prescription.summary, 300)} {kind}")
            yield from self._code(wording.block(prescription.code))
        expected = summary.gain_text(finding)
        if expected:
            yield self._labelled("gain", expected)

    def short_finding(self, finding: Finding) -> Iterator[RenderableType]:
        expected = wording.gain(finding.gain)
        yield self._heading(finding, f"{expected} faster" if expected else "", "green")
        yield self._indented(self.text(wording.line(finding.summary, 240)))
        if finding.prescriptions:
            first = finding.prescriptions[0]
            yield self._labelled("fix", wording.line(first.summary, 160))
            yield from self._code(wording.block(first.code, max_lines=4))

    def footer(self, session: Session, show_all: bool) -> Iterator[RenderableType]:
        shown = summary.footer_facts(session, show_all)
        if shown:
            yield Text("")
            yield self._table([(label.lower(), fact) for label, fact in shown], _QUIET)
        if not show_all:
            return
        if session.outcomes:
            yield self.title("Rules")
            yield self._table(summary.outcome_rows(session))
        if session.missing:
            yield self.title("Not measured")
            yield self._table(summary.missing_rows(session))

    def _table(self, rows: Sequence[Sequence[str]], style: str = "") -> RenderableType:
        grid = self._grid(*["left"] * len(rows[0]))
        for row in rows:
            grid.add_row(*(self.text(cell, style) for cell in row))
        return Constrain(grid, self._width)

    def _heading(self, finding: Finding, remark: str, style: str) -> RenderableType:
        heading = self.text(_title(finding), "bold")
        remarks = [remark] if remark else []
        if finding.is_preflight:
            remarks.append("likely, not yet measured")
        if remarks:
            heading.append_text(self.text("  " + ", ".join(remarks), style))
        grid = Table.grid()
        grid.add_column(width=_INDENT, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(self.text(finding.severity, _SEVERITY_STYLES[finding.severity]), heading)
        return Constrain(grid, self._width)

    def _evidence(self, evidence: tuple[Evidence, ...]) -> RenderableType:
        grid = self._grid("left", "right", "left")
        for fact in evidence:
            basis = wording.evidence_basis(fact)
            cells = (wording.line(fact.metric, 120), wording.evidence_value(fact), f"({basis})" if basis else "")
            grid.add_row(*(self.text(cell, _QUIET) for cell in cells))
        return self._indented(grid)

    def _code(self, lines: list[str]) -> Iterator[Text]:
        # Not wrapped: a line broken by us could not be pasted.
        for line in lines:
            code = self.text(" " * (_INDENT + 6) + line, "green")
            code.no_wrap, code.overflow = True, "ignore"
            yield code

    def _labelled(self, label: str, content: str) -> RenderableType:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=4, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(self.text(label, _QUIET), self.text(content))
        return self._indented(grid)

    def _indented(self, content: Text | Table, by: int = _INDENT) -> RenderableType:
        return Constrain(Padding(content, (0, 0, 0, by), expand=False), self._width)

    def _grid(self, *alignments: str) -> Table:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for alignment in alignments:
            grid.add_column(justify="right" if alignment == "right" else "left", overflow="fold")
        return grid


def _title(finding: Finding) -> str:
    return f"{wording.line(finding.code, 16)} {wording.line(finding.name, 60)}"


def _named(findings: Sequence[Finding]) -> str:
    return ", ".join(f"{_title(finding)} ({finding.severity})" for finding in findings)
