"""The time per step of earlier runs by phase, with marks where settings or versions changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.records import PHASES, Session
from lightning_perf.reports.sections.earlier import changes_text

from .palette import Theme
from .parts import label, seconds_scale, stacked, upright
from .steps import stacked_bars

if TYPE_CHECKING:
    import plotly.graph_objects as go


def earlier_runs(session: Session, theme: Theme = "light") -> go.Figure | None:
    """Return the runs of this training, oldest first; None without earlier ones."""
    if session.earlier is None:
        return None
    runs = session.earlier.runs
    unit, factor = seconds_scale(sum(each.phase_s.values()) for each in runs)
    xs = list(range(len(runs)))
    values_of = {name: [each.phase_s.get(name, 0.0) for each in runs] for name in PHASES}
    data = stacked_bars(values_of, [*xs], [label(each.started_at) for each in runs], factor)
    changed = [i for i, each in enumerate(runs) if each.changes]
    notes = [
        {"x": i - 0.5, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top",
         "text": label(changes_text(runs[i], limit=1), 30)}
        for i in changed[-6:]
    ]  # fmt: skip
    ticks = {"tickvals": xs, "ticktext": [label(each.started_at[:10]) for each in runs]}
    title, marks = f"time per step ({unit})", [upright(i - 0.5) for i in changed]
    return stacked(data, theme, ticks, title, barmode="stack", shapes=marks, annotations=notes)
