"""Colours that all figures share: told apart by people who see few of them, on white, on black and on paper.

The base is the palette of Okabe and Ito (2008), "Color universal design". Its yellow and black are left out: one
vanishes on white, the other on black. Where twelve phases need a colour, those that happen between steps repeat a
colour with a pattern, which also survives a printer without colours.
"""

from __future__ import annotations

from typing import Any, Literal

Theme = Literal["light", "dark"]

ORANGE, SKY, GREEN, BLUE, RED, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
BROWN, GREY = "#8C6D31", "#8A8A8A"

PHASE_COLOURS: dict[str, str] = {
    "data_wait": RED,
    "transfer": ORANGE,
    "forward": BLUE,
    "backward": SKY,
    "optimizer": GREEN,
    "scheduler": GREEN,
    "callbacks": PURPLE,
    "logging": BROWN,
    "validation": BLUE,
    "checkpoint": GREEN,
    "epoch_boundary": ORANGE,
    "startup": PURPLE,
    "other": GREY,
}
"""By phase; what no phase accounts for is grey too."""

PHASE_PATTERNS: dict[str, str] = {
    "scheduler": "-",
    "validation": "/",
    "checkpoint": "x",
    "epoch_boundary": "\\",
    "startup": ".",
}
"""Of the phases that share their color with another."""

SEVERITY_COLOURS: dict[str, str] = {"high": RED, "medium": ORANGE, "low": BLUE, "info": GREY}

SERIES = (BLUE, ORANGE, GREEN, RED, SKY, PURPLE, BROWN, GREY)
"""For what has no colour of its own, in this order."""

LESS_TO_MORE = [[0.0, SKY], [0.5, "#777777"], [1.0, "#FF7A1A"]]
"""Of differences from what is usual, which is grey: it stands back on white and on black."""

_INK = {"light": "#1f2328", "dark": "#e6e6e6"}
_GRID = {"light": "#d9d9d9", "dark": "#4a4a4a"}
_LABEL = {"light": "#ffffff", "dark": "#303030"}


def template(theme: Theme) -> dict[str, Any]:
    """What a figure looks like apart from its data, as plotly's ``layout.template``.

    Only this differs between the themes, so a page can switch by replacing it. Backgrounds are transparent.
    """
    ink, grid = _INK[theme], _GRID[theme]
    axis = {
        "gridcolor": grid,
        "linecolor": grid,
        "zerolinecolor": grid,
        "tickcolor": grid,
        "automargin": True,
        "title": {"standoff": 8},
    }
    return {
        "layout": {
            "font": {"color": ink, "family": "system-ui, 'Segoe UI', Roboto, sans-serif", "size": 13},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(SERIES),
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {"bgcolor": _LABEL[theme], "bordercolor": grid, "font": {"color": ink}, "align": "left"},
            "legend": {"bgcolor": "rgba(0,0,0,0)"},
            "annotationdefaults": {"font": {"color": ink}, "showarrow": False},
        }
    }
