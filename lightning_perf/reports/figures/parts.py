"""Shared parts of figures: escaped labels, units of axes, layout."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from lightning_perf.reports.wording import line

from .palette import GRAY, Theme, template

Figure: TypeAlias = Any
"""A ``plotly.graph_objects.Figure``, which has no types and is imported with the first figure."""

ROW_PX = 30
"""Height of one horizontal bar with its label."""

_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
_BYTES = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "B": 1}


def label(text: str, limit: int = 40) -> str:
    """Return untrusted text as one line that plotly does not read as a tag, an entity or a formula."""
    return html.escape(line(text, limit), quote=False).replace("$", "&#36;")


def seconds_scale(values: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit for the largest duration in seconds, and the factor to it."""
    return _scale(values, _SECONDS)


def bytes_scale(values: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit for the largest number of bytes, and the factor to it."""
    return _scale(values, _BYTES)


def rows_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Return a vertical axis with one label per row, the first on top; rows are numbered, so that labels may repeat."""
    n = len(labels)
    return {
        "tickvals": list(range(n)),
        "ticktext": list(labels),
        "range": [n - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def rows_height(n_rows: int, extra_px: int = 90) -> int:
    """Return the height of a figure of rows, in pixels."""
    return n_rows * ROW_PX + extra_px


def vertical_line(at: float) -> dict[str, Any]:
    """Return a dotted vertical line."""
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": GRAY, "dash": "dot"}}  # fmt: skip


def figure(
    data: Sequence[Mapping[str, Any]], theme: Theme, *, height: int, has_legend: bool = False, **layout: Any
) -> Figure:
    """Return a figure of the given traces (plotly's JSON), as wide as its container.

    ``height`` is in pixels, without the legend; ``layout`` are other arguments of plotly's layout.
    """
    import plotly.graph_objects as go

    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
    return go.Figure(
        {
            "data": list(data),
            "layout": {
                "template": template(theme),
                "height": height + (40 if has_legend else 0),
                "margin": {"l": 10, "r": 20, "t": 60 if has_legend else 20, "b": 50},
                "showlegend": has_legend,
                "legend": legend,
                **layout,
            },
        }
    )


def stacked(
    data: Sequence[Mapping[str, Any]], theme: Theme, xaxis: Mapping[str, Any], title: str, **layout: Any
) -> Figure:
    """Return a figure of times stacked over ``xaxis``, its vertical axis with this title and from zero."""
    axes = {"xaxis": {"showgrid": False, **xaxis}, "yaxis": {"title": {"text": title}, "rangemode": "tozero"}}
    return figure(data, theme, height=320, has_legend=True, **axes, **layout)


def _scale(values: Iterable[float | None], units: Mapping[str, float]) -> tuple[str, float]:
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    unit = next((unit for unit, size in units.items() if largest >= size), list(units)[-1])
    return unit, 1 / units[unit]
