"""The steps of the last profiler window."""

from lightning_perf.records import CATEGORIES, Session
from lightning_perf.reports.wording import seconds, share

from .palette import BLUE, BROWN, GRAY, GREEN, ORANGE, PURPLE, RED, SKY, Theme
from .parts import Figure, label, seconds_scale, stacked

_CATEGORY_COLORS = {
    "kernel": BLUE,
    "communication": PURPLE,
    "memcpy": ORANGE,
    "memset": BROWN,
    "runtime": SKY,
    "data_loading": RED,
    "cpu_op": GREEN,
    "other": GRAY,
}


def trace_steps(session: Session, theme: Theme = "light") -> Figure | None:
    """Return the time of each step by category; time hidden behind a kernel counts for the kernel."""
    recorded = (each.trace for each in reversed(session.windows) if each.status == "recorded")
    steps = next((trace.windows for trace in recorded if trace is not None), ())
    if not steps:
        return None
    unit, factor = seconds_scale(step.duration_s for step in steps)
    data = []
    for category in CATEGORIES:
        values = [step.categories.get(category, 0.0) for step in steps]
        if not any(values):
            continue
        name = category.replace("_", " ")
        data.append({
            "type": "bar", "name": name, "marker": {"color": _CATEGORY_COLORS[category]},
            "x": list(range(len(steps))), "y": [value * factor for value in values],
            "customdata": [
                [label(step.name), seconds(value), share(value / step.duration_s if step.duration_s > 0 else None),
                 "no device" if step.busy_fraction is None else f"device busy {share(step.busy_fraction)}"]
                for step, value in zip(steps, values, strict=True)
            ],
            "hovertemplate": "%{customdata[0]}<br>" + name + ": %{customdata[1]}, %{customdata[2]}<br>"
            "%{customdata[3]}<extra></extra>",
        })  # fmt: skip
    ticks = {"tickvals": list(range(len(steps))), "ticktext": [label(step.name, 24) for step in steps]}
    axis = ticks if len(steps) <= 24 else {"title": {"text": "step of the window"}}
    return stacked(data, theme, axis, f"time ({unit})", barmode="stack")
