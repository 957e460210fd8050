"""What figures are put together from: labels that cannot be read as markup, units for axes, layout."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_perf.reports.wording import line

from .palette import GREY, Theme, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

ROW_PX = 30
"""Height of one horizontal bar with its label."""

_SECONDS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))
_BYTES = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (0, "B"))


def label(text: str, limit: int = 40) -> str:
    """Foreign text for a figure: one line, and nothing that plotly could read as a tag, an entity or a formula."""
    return html.escape(line(text, limit), quote=False).replace("$", "&#36;")


def seconds_scale(values: Iterable[float | None]) -> tuple[str, float]:
    """Unit for the largest of the durations in seconds, and what to multiply them by."""
    largest = _largest(values)
    return next((unit, factor) for least, unit, factor in _SECONDS if largest >= least)


def bytes_scale(values: Iterable[float | None]) -> tuple[str, float]:
    """Unit for the largest number of bytes, and what to multiply them by."""
    largest = _largest(values)
    return next((unit, 1 / max(least, 1)) for least, unit in _BYTES if largest >= least)


def rows_axis(labels: Sequence[str]) -> dict[str, Any]:
    """A vertical axis with a text a row, the first on top. Rows stand at 0, 1, 2 … so that equal texts stay apart."""
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
    """Height of a figure of rows, in pixels."""
    return n_rows * ROW_PX + extra_px


def upright(at: float) -> dict[str, Any]:
    """A dotted line from bottom to top: where nothing would have changed."""
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": GREY, "dash": "dot"}}  # fmt: skip


def figure(
    data: Sequence[Mapping[str, Any]],
    theme: Theme,
    *,
    height: int,
    has_legend: bool = False,
    **layout: Any,
) -> go.Figure:
    """A figure of the given traces in the theme; as wide as its place.

    Args:
        data: Traces as plotly's JSON.
        theme: Of which the colours of text and grid are.
        height: In pixels; room for a legend below comes on top.
        has_legend: Whether to show one.
        layout: The rest of plotly's layout.
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


def rows_figure(
    data: Sequence[Mapping[str, Any]], theme: Theme, *, labels: Sequence[str], axis: str, barmode: str
) -> go.Figure:
    """A figure of several bars a row, with a legend.

    Args:
        data: Bars as plotly's JSON, at the rows 0, 1, 2 ….
        theme: As for ``figure``.
        labels: A text a row.
        axis: What the bars show, with its unit.
        barmode: How bars of one row lie: ``"stack"``, ``"group"`` or ``"overlay"``.
    """
    return figure(
        data,
        theme,
        height=rows_height(len(labels)),
        has_legend=True,
        barmode=barmode,
        xaxis={"title": {"text": axis}, "rangemode": "tozero"},
        yaxis=rows_axis(labels),
    )


def plain(value: Any) -> Any:
    """The value as pure JSON types; what is not a finite number becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def _largest(values: Iterable[float | None]) -> float:
    return max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
