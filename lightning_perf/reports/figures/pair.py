"""Two runs beside one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.records import PHASES, Session
from lightning_perf.reports.sections.comparison import percent_change
from lightning_perf.reports.wording import phase_name, seconds

from .palette import GREY, ORANGE, SKY, Theme
from .parts import figure, rows_axis, rows_height, seconds_scale

if TYPE_CHECKING:
    import plotly.graph_objects as go


def steps_diff(base: Session, new: Session, theme: Theme = "light") -> go.Figure | None:
    """Seconds of each phase for one step, base above new, largest first; what is between steps is spread over them."""
    one, other = _per_step(base), _per_step(new)
    if not one or not other:
        return None
    names = [name for name in PHASES if one.get(name) or other.get(name)]
    names.sort(key=lambda name: -max(one.get(name, 0.0), other.get(name, 0.0)))
    unit, factor = seconds_scale([*one.values(), *other.values()])
    is_slower = sum(other.values()) > sum(one.values())
    changes = [_change(one.get(name), other.get(name)) for name in names]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": title,
            "y": list(range(len(names))),
            "x": [times.get(name, 0.0) * factor for name in names],
            "marker": {"color": colour},
            "customdata": [
                [phase_name(name), seconds(times.get(name)), change]
                for name, change in zip(names, changes, strict=True)
            ],
            "hovertemplate": "%{customdata[0]}, " + title + ": %{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        }
        for title, colour, times in (("base", GREY, one), ("new", ORANGE if is_slower else SKY, other))
    ]
    return figure(
        data,
        theme,
        height=rows_height(len(names), 110),
        has_legend=True,
        barmode="group",
        xaxis={"title": {"text": f"time per step including validation and epoch overhead ({unit})"}},
        yaxis=rows_axis([phase_name(name) for name in names]),
    )


def _per_step(session: Session) -> dict[str, float]:
    steady = session.steady
    if steady is None or steady.n_steps < 1:
        return {}
    return {name: phase.total_s / steady.n_steps for name, phase in steady.phases.items()}


def _change(before: float | None, after: float | None) -> str:
    if not before:
        return "new" if after else ""
    if not after:
        return "gone"
    return f"{percent_change(after / before)} against base"
