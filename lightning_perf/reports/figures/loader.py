"""What the loader delivers by the number of its workers, against what the model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_perf.records import Session
from lightning_perf.reports.sections.loader import CurveRow, curve_rows
from lightning_perf.reports.wording import number, seconds

from .palette import BLUE, GREY, ORANGE, Theme
from .parts import figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lightning_perf.records import WorkerPoint


def loader_curve(session: Session, theme: Theme = "light") -> go.Figure | None:
    """Draw batches per second of the loader by itself by number of workers, and the model's rate."""
    probe = session.loader_probe
    rows = [row for row in curve_rows(session) if row.fetch_s > 0]
    if probe is None or not rows:
        return None
    measured = {point.num_workers: point for point in probe.curve}
    data = [_points(rows, measured)]
    ends = [rows[0].num_workers, rows[-1].num_workers]
    if probe.compute_s:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"the model alone: {number(round(1 / probe.compute_s, 1))} batches/s",
                "x": ends,
                "y": [1 / probe.compute_s] * 2,
                "line": {"color": ORANGE, "dash": "dash"},
                "hoverinfo": "skip",
            }
        )
    notes = [
        {
            "x": row.num_workers,
            "y": 1 / row.fetch_s,
            "text": row.mark,
            "yanchor": "bottom",
            "yshift": 8 + 16 * (i % 2),  # marks of neighbours stand one above the other
        }
        for i, row in enumerate(row for row in rows if row.mark)
    ]
    return figure(
        data,
        theme,
        height=340,
        has_legend=True,
        annotations=notes,
        xaxis={"title": {"text": "workers"}, "tickvals": [row.num_workers for row in rows], "zeroline": False},
        yaxis={"title": {"text": "batches a second"}, "rangemode": "tozero"},
    )


def _points(rows: list[CurveRow], measured: dict[int, WorkerPoint]) -> dict[str, Any]:
    rates = [1 / row.fetch_s for row in rows]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "measured",
        "x": [row.num_workers for row in rows],
        "y": rates,
        "marker": {"symbol": "circle", "size": 10, "color": BLUE},
        "line": {"color": BLUE},
        "customdata": [
            [
                seconds(row.fetch_s),
                "not known" if row.step_s is None else seconds(row.step_s),
                f"{measured[row.num_workers].n_batches} batches",
            ]
            for row in rows
        ],
        "hovertemplate": "%{x} workers: %{customdata[0]} a batch (%{customdata[2]})<br>"
        "step expected in the training: %{customdata[1]}<extra></extra>",
    }
    points = [measured.get(row.num_workers) for row in rows]
    bounds = [(p.low_s, p.high_s) for p in points if p is not None and p.low_s > 0 and p.high_s > 0]
    if len(bounds) == len(rows):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [max(1 / low - rate, 0.0) for (low, _), rate in zip(bounds, rates, strict=True)],
            "arrayminus": [max(rate - 1 / high, 0.0) for (_, high), rate in zip(bounds, rates, strict=True)],
            "color": GREY,
        }
    return trace
