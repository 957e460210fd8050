"""Bar charts of tables: reports show the same rows as tables with bars."""

from collections.abc import Callable

from lightning_perf.records import Session
from lightning_perf.reports.cells import text_of
from lightning_perf.reports.document import Table
from lightning_perf.reports.session_document import session_document

from .palette import BLUE, Theme
from .parts import Figure, figure, label, rows_axis, rows_height

MAX_ROWS = 24


def bars_of(*keys: str) -> Callable[..., Figure | None]:
    """Return a function that draws the first of these tables that a session's document has; the latest of a key."""

    def draw(session: Session, theme: Theme = "light") -> Figure | None:
        parts = [part for each in session_document(session).sections for part in each.parts]
        tables = {part.key: part for part in parts if isinstance(part, Table) and part.bars}
        shown = next((tables[key] for key in keys if key in tables), None)
        return None if shown is None else _bars(shown, theme)

    return draw


def _bars(table: Table, theme: Theme) -> Figure:
    rows, by = table.rows[:MAX_ROWS], table.heads.index(table.bar_head)
    lines_of = [[f"{head}: {label(text_of(cell), 100)}" for head, cell in zip(table.heads, row, strict=True)]
            for row in rows]  # fmt: skip
    bars = {
        "type": "bar", "orientation": "h", "y": list(range(len(rows))), "x": list(table.bars[:MAX_ROWS]),
        "marker": {"color": BLUE}, "cliponaxis": False,
        "text": [label(text_of(row[by])) for row in rows], "textposition": "outside",
        "customdata": [["<br>".join(lines)] for lines in lines_of],
        "hovertemplate": "%{customdata[0]}<extra></extra>",
    }  # fmt: skip
    axis = {"title": {"text": label(table.bar_head)}, "range": [0, 1.2], "showticklabels": False}
    names = [label(text_of(row[0]), 36) for row in rows]
    return figure([bars], theme, height=rows_height(len(rows)), xaxis=axis, yaxis=rows_axis(names))
