"""Colors shared by all figures, distinguishable for color-blind readers on light, dark and paper.

Based on the palette of Okabe and Ito (2008), "Color universal design", without yellow (invisible on white) and black
(invisible on dark). Phases between steps repeat a color with a pattern, which also works in grayscale print.
"""

from typing import Any, Literal

Theme = Literal["light", "dark"]

ORANGE, SKY, GREEN, BLUE, RED, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
BROWN, GRAY = "#8C6D31", "#8A8A8A"

PHASE_COLORS: dict[str, str] = {
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
    "other": GRAY,
}
"""By phase; unaccounted time is gray too."""

PHASE_PATTERNS: dict[str, str] = {
    "scheduler": "-",
    "validation": "/",
    "checkpoint": "x",
    "epoch_boundary": "\\",
    "startup": ".",
}
"""Patterns of the phases that share a color with another."""

SEVERITY_COLORS: dict[str, str] = {"high": RED, "medium": ORANGE, "low": BLUE, "info": GRAY}

SERIES = (BLUE, ORANGE, GREEN, RED, SKY, PURPLE, BROWN, GRAY)
"""For series without a fixed color, in this order."""

LESS_TO_MORE = [[0.0, SKY], [0.5, "#777777"], [1.0, "#FF7A1A"]]
"""Diverging scale; the middle is gray, which is unobtrusive on light and dark."""

_INK = {"light": "#1f2328", "dark": "#e6e6e6"}
_GRID = {"light": "#d9d9d9", "dark": "#4a4a4a"}
_LABEL = {"light": "#ffffff", "dark": "#303030"}


def template(theme: Theme) -> dict[str, Any]:
    """Return plotly's ``layout.template`` of a theme.

    Themes differ only in this, so a page can switch by replacing it. Backgrounds are transparent.
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
