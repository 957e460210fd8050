"""The ranks side by side, readable for eight and for a thousand."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from lightning_perf.records import PARTS, RankSummary, Session
from lightning_perf.reports.wording import seconds

from .palette import LESS_TO_MORE, Theme
from .parts import Figure, figure, label, rows_axis, rows_height, seconds_scale

MAX_COLUMNS = 64
"""Up to this many ranks are columns with all their parts. More become a grid with one cell per rank, because a narrow
column would hide the one rank that matters."""

MAX_TEXTS = 12
"""Cells show their value for up to this many ranks."""

MAX_CELLS = 100_000
"""Cells of the grid: further ranks are not drawn, because a file may contain any rank."""

MAX_HOVER_TEXTS = 2048
"""For more ranks, hovering shows only the own work: the rest would add 150 bytes per rank to the file."""

LEAST_DIFFERENCE = 0.05
"""Share of the median step by which a rank must differ to stand out."""

_NO_LINES = {"showgrid": False, "zeroline": False}


def ranks(session: Session, theme: Theme = "light") -> Figure | None:
    """Return how each rank differs from the median, by part of its work; for many ranks, a grid of their own work."""
    found = session.ranks
    if found is None or len(found.summaries) < 2:
        return None
    if len(found.summaries) <= MAX_COLUMNS:
        return _by_part(found.summaries, theme)
    return _grid(found.summaries, theme)


def _by_part(summaries: tuple[RankSummary, ...], theme: Theme) -> Figure:
    rows: list[tuple[str, list[float | None]]] = [("own work", [one.own_s for one in summaries])]
    rows += [(f"… {part}", [one.parts_s.get(part) for one in summaries]) for part in PARTS]
    rows.append(("waits for others", [one.waiting_s for one in summaries]))
    differences = [_from_median(values) for _, values in rows]
    unit, factor, strongest_s = _scale([value for values in differences for value in values], summaries)
    cells: dict[str, Any] = {
        **_heat(unit, strongest_s * factor),
        "x": list(range(len(summaries))),
        "y": list(range(len(rows))),
        "z": [[None if value is None else value * factor for value in values] for values in differences],
        "customdata": [
            [[f"rank {one.rank} on {label(one.node, 40)}", f"{name.removeprefix('… ')}: {seconds(value)}"]
             for one, value in zip(summaries, values, strict=True)]
            for name, values in rows
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} per step<extra></extra>",
    }  # fmt: skip
    if len(summaries) <= MAX_TEXTS:
        cells["text"] = [["" if value is None else seconds(value) for value in values] for _, values in rows]
        cells["texttemplate"] = "%{text}"
    every = max(1, math.ceil(len(summaries) / 16))
    ticks = list(range(0, len(summaries), every))
    xaxis = {**_NO_LINES, "title": {"text": "rank"}, "tickvals": ticks,
             "ticktext": [str(summaries[i].rank) for i in ticks]}  # fmt: skip
    height = rows_height(len(rows), 100)
    return figure([cells], theme, height=height, xaxis=xaxis, yaxis=rows_axis([name for name, _ in rows]))


def _grid(summaries: tuple[RankSummary, ...], theme: Theme) -> Figure:
    by_rank = {one.rank: one for one in summaries}
    n = min(max(by_rank) + 1, MAX_CELLS)
    columns = 2 ** math.ceil(math.log2(math.sqrt(n)))
    starts = list(range(0, n, columns))
    differences = dict(zip(by_rank, _from_median([one.own_s for one in by_rank.values()]), strict=True))
    unit, factor, strongest_s = _scale(list(differences.values()), summaries)
    is_brief = n > MAX_HOVER_TEXTS
    texts = {rank: _hover_text(one, is_brief) for rank, one in by_rank.items()}
    at = [[start + i for i in range(columns)] for start in starts]
    cells = {
        **_heat(unit, strongest_s * factor),
        "x": list(range(columns)),
        "y": list(range(len(starts))),
        "z": [[None if (value := differences.get(rank)) is None else value * factor for rank in row] for row in at],
        "customdata": [
            [texts.get(rank, "" if rank >= n else f"rank {rank} did not report") for rank in row] for row in at
        ],
        "hoverongaps": False,
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip
    every = max(1, len(starts) // 16)
    return figure(
        [cells],
        theme,
        height=rows_height(0, 110) + 14 * max(len(starts), 8),
        xaxis={**_NO_LINES, "title": {"text": f"rank within its row of {columns}"}},
        yaxis={
            **_NO_LINES, "title": {"text": "first rank of the row"}, "range": [len(starts) - 0.5, -0.5],
            "tickvals": list(range(0, len(starts), every)), "ticktext": [str(start) for start in starts[::every]],
        },
    )  # fmt: skip


def _from_median(values: Sequence[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    usual = median(known) if known else 0.0
    return [None if value is None else value - usual for value in values]


def _scale(differences: Sequence[float | None], summaries: tuple[RankSummary, ...]) -> tuple[str, float, float]:
    """Return the unit, its factor, and the difference in seconds with the strongest color: noise stays gray."""
    largest = max((abs(value) for value in differences if value is not None), default=0.0)
    strongest_s = max(largest, LEAST_DIFFERENCE * median(one.step_s for one in summaries)) or 1e-6
    return *seconds_scale([strongest_s]), strongest_s


def _hover_text(one: RankSummary, is_brief: bool) -> str:
    own = f"rank {one.rank}: own work {seconds(one.own_s)} per step"
    if is_brief:
        return own
    parts = ", ".join(f"{part} {seconds(one.parts_s[part])}" for part in PARTS if part in one.parts_s)
    waits = "" if one.waiting_s is None else f"<br>waits for others {seconds(one.waiting_s)}"
    return f"{own}<br>{parts}{waits}<br>on {label(one.node, 40)}"


def _heat(unit: str, strongest: float) -> dict[str, Any]:
    return {
        "type": "heatmap", "xgap": 1, "ygap": 1, "colorscale": LESS_TO_MORE,
        "zmin": -strongest, "zmid": 0, "zmax": strongest,
        "colorbar": {"title": {"text": f"{unit} per step from the median", "side": "right"}, "thickness": 14},
    }  # fmt: skip
