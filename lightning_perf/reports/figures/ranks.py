"""The ranks beside one another, readable for eight and for a thousand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lightning_perf.records import PARTS, RankSummary, Session
from lightning_perf.reports.wording import seconds

from .palette import SCALE, Theme
from .parts import figure, label, rows_axis, rows_height, seconds_scale

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_COLUMNS = 64
"""Up to so many ranks stand side by side with all their parts; more are laid out as a grid of one figure each: a
column narrower than a few pixels would hide the one rank that matters."""


def ranks(session: Session, theme: Theme = "light") -> go.Figure | None:
    """Own work of each rank by part and its waiting for the others; of very many ranks, a grid of their own work."""
    together = session.ranks
    if together is None or len(together.summaries) < 2:
        return None
    if len(together.summaries) <= MAX_COLUMNS:
        return _by_part(together.summaries, theme)
    return _grid(together.summaries, theme)


def _by_part(summaries: tuple[RankSummary, ...], theme: Theme) -> go.Figure:
    rows: list[tuple[str, list[float | None]]] = [("own work", [one.own_s for one in summaries])]
    rows += [(f"… {part}", [one.parts_s.get(part) for one in summaries]) for part in PARTS]
    rows.append(("waits for others", [one.waiting_s for one in summaries]))
    unit, factor = seconds_scale(value for _, values in rows for value in values)
    cells = {
        **_heat(unit),
        "x": list(range(len(summaries))),
        "y": list(range(len(rows))),
        "z": [[None if value is None else value * factor for value in values] for _, values in rows],
        "customdata": [
            [[f"rank {one.rank} on {label(one.node, 40)}", f"{name.removeprefix('… ')}: {seconds(value)}"]
             for one, value in zip(summaries, values, strict=True)]
            for name, values in rows
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} a step<extra></extra>",
    }  # fmt: skip
    every = max(1, math.ceil(len(summaries) / 16))
    ticks = list(range(0, len(summaries), every))
    return figure(
        [cells],
        theme,
        height=rows_height(len(rows), 100),
        xaxis={
            "title": {"text": "rank"},
            "tickvals": ticks,
            "ticktext": [str(summaries[i].rank) for i in ticks],
            "showgrid": False,
        },
        yaxis=rows_axis([name for name, _ in rows]),
    )


def _grid(summaries: tuple[RankSummary, ...], theme: Theme) -> go.Figure:
    by_rank = {one.rank: one for one in summaries}
    n = max(by_rank) + 1
    columns = 2 ** math.ceil(math.log2(math.sqrt(n)))
    starts = list(range(0, n, columns))
    unit, factor = seconds_scale(one.own_s for one in summaries)
    found = [[by_rank.get(start + i) for i in range(columns)] for start in starts]
    cells = {
        **_heat(unit),
        "x": list(range(columns)),
        "y": list(range(len(starts))),
        "z": [[None if one is None else one.own_s * factor for one in row] for row in found],
        "customdata": [
            [_told(one, start + i) for i, one in enumerate(row)] for row, start in zip(found, starts, strict=True)
        ],
        "hoverongaps": False,
        "hovertemplate": "%{customdata}<extra></extra>",
        "xgap": 1,
        "ygap": 1,
    }  # fmt: skip
    every = max(1, len(starts) // 16)
    return figure(
        [cells],
        theme,
        height=rows_height(0, 110) + 14 * max(len(starts), 8),
        xaxis={"title": {"text": f"rank within its row of {columns}"}, "showgrid": False},
        yaxis={
            "title": {"text": "first rank of the row"},
            "tickvals": list(range(0, len(starts), every)),
            "ticktext": [str(start) for start in starts[::every]],
            "range": [len(starts) - 0.5, -0.5],
            "showgrid": False,
        },
    )


def _told(one: RankSummary | None, rank: int) -> str:
    if one is None:
        return f"rank {rank} did not report"
    parts = ", ".join(f"{part} {seconds(one.parts_s[part])}" for part in PARTS if part in one.parts_s)
    waits = "" if one.waiting_s is None else f"<br>waits for others {seconds(one.waiting_s)}"
    return f"rank {rank} on {label(one.node, 40)}<br>own work {seconds(one.own_s)} a step: {parts}{waits}"


def _heat(unit: str) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "colorscale": SCALE,
        "colorbar": {"title": {"text": f"{unit} a step", "side": "right"}, "thickness": 14},
    }
