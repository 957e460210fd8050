"""The parts that console reports are made of: headings, breakdowns, findings, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lightning_perf.records import Breakdown, Comparison, Evidence, Finding, ModelProfile, Session, StageTimes, Trial

from . import comparison_rows, host_rows, loader_rows, memory_rows, model_rows, rank_rows, summary, trial_rows, wording
from .summary import PhaseRow

_NARROW = 70
_WIDEST = 100
_WIDE = 95
_ROOM_FOR_VERDICTS = 92
_BAR = {False: 30, True: 14}
_CURVE_BAR = {False: 18, True: 8}
_SEVERITY_STYLES = {"high": "bold red", "medium": "bold yellow", "low": "bold cyan", "info": "bold"}
_QUIET = "dim"
_INDENT = 8


class Page:
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
            yield self.table([(label.lower(), fact) for label, fact in shown], _QUIET)
        if not show_all:
            return
        if session.outcomes:
            yield self.title("Rules")
            yield self.table(summary.outcome_rows(session))
        if session.missing:
            yield self.title("Not measured")
            yield self.table(summary.missing_rows(session))

    def memory(self, session: Session) -> Iterator[RenderableType]:
        """What memory holds, where it was looked at."""
        if session.memory.breakdown is None:
            return
        yield from self.breakdown_of_memory(session.memory.breakdown)
        phases = memory_rows.phase_facts(session)
        if phases:
            yield self.facts(phases)
        growth = memory_rows.growth_facts(session)
        if growth:
            yield self.facts(growth)
        fits = memory_rows.headroom_fact(session.memory.headroom)
        if fits:
            yield self.quiet(fits)

    def ranks(self, session: Session) -> Iterator[RenderableType]:
        """The ranks beside one another, where there are several."""
        ranks = session.ranks
        if ranks is None or not rank_rows.is_worth_showing(ranks):
            return
        yield self.title(rank_rows.rank_title(ranks))
        rows = rank_rows.rank_table(ranks)
        yield self.table(rows, alignments=("left", *["right"] * (len(rows[0]) - 1)))
        strip = rank_rows.rank_strip(ranks)
        if strip:
            yield self._labelled("own", strip)
        facts = rank_rows.rank_facts(ranks)
        if facts:
            yield self.facts(facts)

    def loader(self, session: Session) -> Iterator[RenderableType]:
        """The loader taken apart, where it was probed."""
        probe = session.loader_probe
        if probe is None:
            return
        yield self.title(loader_rows.loader_title(probe))
        ceilings = loader_rows.ceiling_facts(session)
        if ceilings:
            yield self.facts(ceilings)
        rows = loader_rows.curve_rows(session)
        if rows:
            width = _CURVE_BAR[self._is_narrow]
            grid = self._grid("right", "left", "right", "right", "left")
            grid.add_row(*(self.text(head, _QUIET) for head in loader_rows.CURVE_HEADS))
            for number, bar, rate, step, mark in loader_rows.curve_cells(rows, width, "█"):
                style = "bold" if "enough" in mark else ""
                grid.add_row(self.text(number, style), self.text(bar.ljust(width), "cyan"),
                             *(self.text(cell, style) for cell in (rate, step, mark)))  # fmt: skip
            yield Constrain(grid, self._width)
        functions = loader_rows.function_rows(probe)
        if functions:
            yield self.table(functions, alignments=("left", "right"))
        facts = loader_rows.sample_facts(probe)
        if facts:
            yield self.facts(facts)

    def host(self, session: Session) -> Iterator[RenderableType]:
        """Lines that take time, lines that wait, what the compiler did; nothing where nothing was seen."""
        calls, watch = session.sync_calls, session.compiler
        if lines := host_rows.line_rows(session):
            yield self.title(host_rows.LINES_TITLE)
            yield self.table(
                [host_rows.LINE_HEADS, *lines], alignments=("left", "left", "left", "right", "right", "left")
            )
        rows = host_rows.sync_rows(calls) if calls is not None else []
        if calls is not None and rows:
            yield self.title(host_rows.sync_title(calls))
            yield self.table([host_rows.SYNC_HEADS, *rows], alignments=("left", "left", "right", "right", "left"))
            note = host_rows.sync_note(calls)
            if note:
                yield self.quiet(note)
        if watch is not None:
            yield self.title(host_rows.compiler_title(watch))
            facts = host_rows.compiler_facts(watch)
            if facts:
                yield self.facts(facts)
            rows = host_rows.compiler_rows(watch)
            if rows:
                yield self.table([host_rows.COMPILER_HEADS, *rows], alignments=("left", "left", "right", "left"))
        facts = host_rows.host_facts(session)
        if facts:
            yield self.facts(facts)

    def breakdown_of_memory(self, breakdown: Breakdown) -> Iterator[RenderableType]:
        rows = memory_rows.memory_rows(breakdown)
        if not rows:
            return
        yield self.title(memory_rows.memory_title(breakdown))
        cells = [(row.name, wording.share(row.share, decimals=1), wording.size(row.n_bytes), row.note) for row in rows]
        yield self.table(cells, alignments=("left", "right", "right", "left"))
        modules = memory_rows.module_facts(breakdown)
        if modules:
            yield self.facts(modules)

    def trial(self, trial: Trial) -> Iterator[RenderableType]:
        """The ladder, what was left out of it, and what to paste."""
        yield self.title(trial_rows.trial_title(trial))
        yield self._indented(self.text(trial_rows.headline(trial), "bold"), 0)
        yield self.facts(trial_rows.trial_facts(trial))
        ladder = trial_rows.ladder_rows(trial)
        if len(ladder) > 1:
            yield Text("")
            yield self._ladder("ladder", ladder)
        alone = trial_rows.alone_rows(trial)
        if alone:
            yield Text("")
            yield self._ladder("alone", alone)
        batches = trial_rows.batch_fact(trial)
        if batches:
            yield Text("")
            yield self.quiet(batches)
        out = trial_rows.left_out(trial)
        if out:
            yield Text("")
            yield self.table([("left out", "why"), *out], _QUIET)
        for label, _, lines in trial_rows.pasted(trial):
            yield Text("")
            yield self.quiet(f"{label}:")
            yield from self._code(lines, indent=4)

    def comparison(self, comparison: Comparison) -> Iterator[RenderableType]:
        """What got faster or slower, and what else differs."""
        rows = comparison_rows
        yield self._indented(self.text(rows.headline(comparison), "bold"), 0)
        yield self.quiet("\n".join(rows.facts(comparison)))
        for caution in rows.cautions(comparison):
            yield self._labelled("note", caution)
        right = ("left", "right", "right", "right")
        yield self.title("Times")
        yield self.table([rows.TIME_HEADS, *rows.time_rows(comparison)], alignments=(*right, "right", "left"))
        for told in rows.no_interval(comparison):
            yield self.quiet(told)
        figures = rows.figure_rows(comparison)
        if figures:
            yield self.title("Memory and other figures")
            yield self.table([rows.FIGURE_HEADS, *figures], alignments=right)
        findings = rows.finding_rows(comparison)
        if findings:
            yield self.title("Findings that appeared (+), went (−) or changed")
            for found in findings:
                yield self._labelled(found.sign, f"{found.name}  {found.base} → {found.new}")
                yield self._indented(self.text(found.text, _QUIET))
        same = rows.stayed(comparison)
        if same:
            yield self.quiet(f"as before: {same}")
        for title, differences in (("Settings", comparison.settings), ("Environment", comparison.environment)):
            if differences:
                yield self.title(f"{title} that differ" if title == "Settings" else f"{title} that differs")
                yield self.table([rows.DIFFERENCE_HEADS, *rows.difference_rows(differences)])
        if comparison.trials:
            yield self.title("What trials measured")
            yield self.table([rows.TRIAL_HEADS, *rows.trial_rows(comparison)])

    def _ladder(self, name: str, rows: Sequence[trial_rows.LadderRow]) -> RenderableType:
        heads = (name, *trial_rows.HEADS[1:])
        # Columns that are empty all the way down are left out, and what there is no room for.
        shown = [i for i in range(len(heads)) if any(row[i] for row in rows)]
        shown = [i for i in shown if heads[i] != "verdict" or name == "alone" or self._width >= _ROOM_FOR_VERDICTS]
        if name == "alone" and self._width < _ROOM_FOR_VERDICTS:
            shown = [i for i in shown if heads[i] not in ("peak", "losses")]
        grid = self._grid(*("left" if heads[i] in (name, "losses", "verdict") else "right" for i in shown))
        for i, column in zip(shown, grid.columns, strict=True):
            column.no_wrap = i > 0
        grid.add_row(*(self.text(heads[i], _QUIET) for i in shown))
        for row in rows:
            style = _QUIET if row.name.startswith("−") else ""
            grid.add_row(*(self.text(row[i], style) for i in shown))
        return Constrain(grid, self._width)

    def model_profile(self, profile: ModelProfile, in_run: bool = False) -> Iterator[RenderableType]:
        """What the model's arithmetic costs, by module and operator, against what the device can do.

        Args:
            profile: The figures.
            in_run: Whether the report tells the times of steps elsewhere.
        """
        if profile.forward_flops is None:
            return
        yield self.title(model_rows.title(profile))
        yield self.facts(model_rows.facts(profile))
        for facts in (
            [] if in_run else model_rows.time_facts(profile),
            model_rows.utilisation_facts(profile.utilisation),
            model_rows.bound_facts(profile),
        ):
            if facts:
                yield self.facts(facts)
        is_wide = self._width >= _WIDE
        for table in (model_rows.module_table(profile, is_wide), model_rows.operator_table(profile, is_wide)):
            if table is not None:
                sides = {"l": "left", "r": "right"}
                yield self.table([table.heads, *table.rows], alignments=[sides[side] for side in table.alignments])

    def table(self, rows: Sequence[Sequence[str]], style: str = "", alignments: Sequence[str] = ()) -> RenderableType:
        grid = self._grid(*(alignments or ["left"] * len(rows[0])))
        for row in rows:
            grid.add_row(*(self.text(cell, style) for cell in row))
        return Constrain(grid, self._width)

    def _heading(self, finding: Finding, remark: str, style: str) -> RenderableType:
        heading = self.text(summary.finding_title(finding), "bold")
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

    def _code(self, lines: list[str], indent: int = _INDENT + 6) -> Iterator[Text]:
        # Not wrapped: a line broken by us could not be pasted.
        for line in lines:
            code = self.text(" " * indent + line, "green")
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
