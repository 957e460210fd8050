"""Documents on a terminal, and the short reports that only a terminal shows."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from lightning_perf.reports import document as doc
from lightning_perf.reports import wording

_WIDEST = 100
_NARROW = 70
_BAR = {False: 20, True: 10}
"""Width of bars by whether the console is narrow."""
SEVERITY_STYLES = {"high": "bold red", "medium": "bold yellow", "low": "bold cyan", "info": "bold"}
_VERDICT_STYLES = {"healthy": "bold green"}
QUIET = "dim"
_INDENT = 8
_LEAST_TEXT = 8
"""Least width of a column of text beside numbers that are not wrapped."""
_LONGEST_VALUE = 30
"""Longest value of an evidence that is never wrapped."""


class DocumentReport:
    """Draws documents; adapts to the width and encoding of the console."""

    def __init__(self, *documents: doc.Document) -> None:
        self._documents = documents

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        page = Page(options)
        for i, document in enumerate(self._documents):
            if i:
                yield Text("")
            yield from page.document(document)


class Page:
    """Draws parts for one width and encoding. Everything is `Text`: nothing is read as markup."""

    def __init__(self, options: ConsoleOptions) -> None:
        self._encoding = options.encoding
        self._width = min(options.max_width, _WIDEST)
        self._bar_width = _BAR[self._width < _NARROW]

    def document(self, document: doc.Document) -> Iterator[RenderableType]:
        """Yield title, verdict and facts, then all sections."""
        if document.title:
            yield self._text(document.title, "bold")
        if document.verdict is not None:
            yield self._verdict(document.verdict)
        if document.facts:
            yield self._facts(document.facts)
        for i, section in enumerate(doc.visible(document, self._width)):
            if i or document.verdict or document.title:
                yield Text("")
            if section.title:
                yield self._text(section.title, "bold")
            for before, part in zip((None, *section.parts), section.parts, strict=False):
                if before is not None and _is_set_off(before, part):
                    yield Text("")
                yield from self._part(part)

    def _part(self, part: doc.AnyPart) -> Iterator[RenderableType]:
        if isinstance(part, doc.Heading):
            yield self._text(part.text, "bold")
        elif isinstance(part, doc.Note):
            yield self._text(part.text, "bold" if part.kind == "strong" else QUIET)
        elif isinstance(part, doc.Facts):
            yield self._facts(part.items)
        elif isinstance(part, doc.Listing):
            for item in part.items:
                yield self._labeled("-", item, 0)
        elif isinstance(part, doc.Pairs):
            yield self._grid([(label.lower(), text) for label, text in part.rows], style=QUIET)
        elif isinstance(part, doc.Code):
            if part.label:
                yield self._text(f"{part.label}:", QUIET)
            yield from self._code(part.lines, 4 if part.language else 0)
        elif isinstance(part, doc.Table):
            yield from self._table(part)
        elif isinstance(part, doc.Diagnosis):
            yield from self._finding(part)

    def _text(self, content: str, style: str = "") -> Text:
        return Text(wording.fit_encoding(content, self._encoding), style=style, overflow="fold")

    def _verdict(self, verdict: doc.Verdict) -> RenderableType:
        style = SEVERITY_STYLES.get(verdict.severity) or _VERDICT_STYLES.get(verdict.category, "bold")
        return Constrain(
            Text.assemble(self._text("PerfDoctor: ", "bold"), self._text(verdict.text, style)), self._width
        )

    def _facts(self, facts: Sequence[str]) -> RenderableType:
        return Constrain(self._text("\n".join(joined(facts, " · ", self._width)), QUIET), self._width)

    def _finding(self, finding: doc.Diagnosis) -> Iterator[RenderableType]:
        heading = self._text(finding.title, "bold")
        heading.append_text(self._text(f"  {finding.remarks}", QUIET))
        grid = Grid.grid()
        grid.add_column(width=_INDENT, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(self._text(finding.severity, SEVERITY_STYLES[finding.severity]), heading)
        yield Constrain(grid, self._width)
        if finding.summary:
            yield Constrain(Padding(self._text(finding.summary), (0, 0, 0, _INDENT), expand=False), self._width)
        if finding.evidence:
            rows: list[tuple[str, ...]]
            rows = [(name, value.text, f"({basis})" if basis else "") for name, value, basis in finding.evidence]
            if not any(row[2] for row in rows):  # beside an empty column, rich makes the first one too narrow
                rows = [row[:2] for row in rows]
            # A column of numbers is not wrapped, so that a long text in it would be cut.
            has_text = any(cell_len(row[1]) > _LONGEST_VALUE for row in rows)
            yield self._grid(rows, [False, not has_text, False][: len(rows[0])], style=QUIET, indent=_INDENT)
        for fix in finding.fixes:
            yield self._labeled("fix", f"{fix.text} ({fix.kind})")
            yield from self._code(fix.code)
        if finding.basis:
            yield self._labeled("basis", finding.basis)

    def _table(self, table: doc.Table) -> Iterator[RenderableType]:
        if table.title:
            yield self._text(table.title, "bold")
        if table.about:
            yield self._text(table.about, QUIET)
        shown = table.grid(self._width, lambda length: _bar(length, self._bar_width))
        yield self._grid(shown.rows, shown.numbers, shown.heads, bar=shown.bar)
        if shown.rest:
            yield self._text(shown.rest, QUIET)

    def _grid(
        self,
        rows: Sequence[Sequence[str]],
        numbers: Sequence[bool] = (),
        heads: Sequence[str] = (),
        *,
        style: str = "",
        indent: int = 0,
        bar: int | None = None,
    ) -> RenderableType:
        grid = Grid.grid(padding=(0, 2, 0, 0))
        columns = numbers or [False] * len(rows[0])
        lines = [heads, *rows] if any(heads) else rows
        widths = [max(cell_len(line[i]) for line in lines) + 2 for i in range(len(columns))]
        needed = sum(width if each else _LEAST_TEXT for width, each in zip(widths, columns, strict=True))
        fits = needed <= self._width - indent  # otherwise numbers are wrapped, too: rich would cut them
        for is_number in columns:
            grid.add_column(justify="right" if is_number else "left", overflow="fold", no_wrap=is_number and fits)
        if any(heads):
            grid.add_row(*(self._text(head, QUIET) for head in heads))
        for row in rows:
            grid.add_row(*(self._text(cell, "cyan" if i == bar else style) for i, cell in enumerate(row)))
        return Constrain(Padding(grid, (0, 0, 0, indent), expand=False) if indent else grid, self._width)

    def _code(self, lines: Sequence[str], indent: int = _INDENT + 6) -> Iterator[Text]:
        # Not wrapped: a broken line could not be copied.
        for line in lines:
            code = self._text(" " * indent + line, "green")
            code.no_wrap, code.overflow = True, "ignore"
            yield code

    def _labeled(self, label: str, content: str, indent: int = _INDENT) -> RenderableType:
        grid = Grid.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=5 if indent else 1, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(self._text(label, QUIET), self._text(content))
        return Constrain(Padding(grid, (0, 0, 0, indent), expand=False), self._width)


def joined(parts: Sequence[str], separator: str, width: int) -> list[str]:
    """Return lines of at most ``width`` cells, broken between parts only; a longer part is a line of its own."""
    lines = list(parts[:1])
    for part in parts[1:]:
        longer = lines[-1] + separator + part
        lines[-1:] = [longer] if cell_len(longer) <= width else [lines[-1], part]
    return lines


def _bar(length: float, width: int) -> str:
    return ("█" * round(width * length) or "▏").ljust(width)


def _is_set_off(before: doc.AnyPart, part: doc.AnyPart) -> bool:
    """Return whether a blank line separates the two parts."""
    if isinstance(part, doc.Table):
        return bool(part.title) or isinstance(before, doc.Table)
    if isinstance(part, doc.Pairs):
        return isinstance(before, doc.Table)
    return isinstance(part, doc.Heading | doc.Diagnosis) or (isinstance(part, doc.Code) and bool(part.label))
