"""What the last profiler window says: steps of the device, kernels, operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_perf.records import CATEGORIES, Session, TraceRecord
from lightning_perf.reports.wording import kernel_name, number, seconds, share

from .palette import BLUE, BROWN, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Theme
from .parts import figure, label, rows_axis, rows_figure, rows_height, seconds_scale

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_ROWS = 16

_CATEGORY_COLOURS = {
    "kernel": BLUE,
    "communication": PURPLE,
    "memcpy": ORANGE,
    "memset": BROWN,
    "runtime": SKY,
    "data_loading": RED,
    "cpu_op": GREEN,
    "other": GREY,
}
_KIND_COLOURS = {
    "matmul": BLUE,
    "convolution": SKY,
    "attention": PURPLE,
    "elementwise": ORANGE,
    "reduction": GREEN,
    "normalization": BROWN,
    "communication": RED,
}
"""Of the kinds that most often matter; the rest are grey and told apart by their names."""


def trace_of(session: Session) -> TraceRecord | None:
    """The trace that the figures are drawn from: of the last window that was recorded; None without one."""
    recorded = (window.trace for window in reversed(session.windows) if window.status == "recorded")
    return next((trace for trace in recorded if trace is not None), None)


def trace_steps(session: Session, theme: Theme = "light") -> go.Figure | None:
    """Each step of the window by exclusive category: what is hidden behind a kernel is not charged."""
    trace = trace_of(session)
    if trace is None:
        return None
    steps = trace.windows
    if not steps:
        return None
    unit, factor = seconds_scale(step.duration_s for step in steps)
    data = []
    for category in CATEGORIES:
        values = [step.categories.get(category, 0.0) for step in steps]
        if not any(values):
            continue
        name = category.replace("_", " ")
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": list(range(len(steps))),
                "y": [value * factor for value in values],
                "marker": {"color": _CATEGORY_COLOURS[category]},
                "customdata": [
                    [
                        label(step.name),
                        seconds(value),
                        share(value / step.duration_s if step.duration_s > 0 else None),
                        "no device" if step.busy_fraction is None else f"device busy {share(step.busy_fraction)}",
                    ]
                    for step, value in zip(steps, values, strict=True)
                ],
                "hovertemplate": "%{customdata[0]}<br>" + name + ": %{customdata[1]}, %{customdata[2]}<br>"
                "%{customdata[3]}<extra></extra>",
            }
        )
    ticks = {"tickvals": list(range(len(steps))), "ticktext": [label(step.name, 24) for step in steps]}
    return figure(
        data,
        theme,
        height=320,
        has_legend=True,
        barmode="stack",
        xaxis={"showgrid": False, **(ticks if len(steps) <= 24 else {"title": {"text": "step of the window"}})},
        yaxis={"title": {"text": f"time ({unit})"}, "rangemode": "tozero"},
    )


def operators(session: Session, theme: Theme = "light") -> go.Figure | None:
    """Operators by time: of their own on the host, and of the kernels they launched; without a window, as counted."""
    trace = trace_of(session)
    if trace is not None and trace.operators:
        return _traced_operators(trace, theme)
    profile = session.model_profile
    timed = [one for one in profile.operators if one.total_s] if profile is not None else []
    if not timed:
        return None
    shown = sorted(timed, key=lambda one: -(one.total_s or 0.0))[:MAX_ROWS]
    unit, factor = seconds_scale(one.total_s for one in shown)
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(shown))),
        "x": [(one.total_s or 0.0) * factor for one in shown],
        "marker": {"color": BLUE},
        "customdata": [[label(one.name), seconds(one.total_s), f"{one.calls:,}", label(one.dtype)] for one in shown],
        "hovertemplate": "%{customdata[0]} %{customdata[3]}<br>%{customdata[1]} a step in %{customdata[2]} calls"
        "<extra></extra>",
    }
    return figure(
        [bars],
        theme,
        height=rows_height(len(shown)),
        xaxis={"title": {"text": f"time in one step ({unit})"}, "rangemode": "tozero"},
        yaxis=rows_axis([label(one.name.removeprefix("aten::"), 32) for one in shown]),
    )


def kernels(session: Session, theme: Theme = "light") -> go.Figure | None:
    """The kernels that took most, coloured by kind."""
    trace = trace_of(session)
    if trace is None or trace.kernels is None or not trace.kernels.top:
        return None
    shown = trace.kernels.top[:MAX_ROWS]
    unit, factor = seconds_scale(one.total_s for one in shown)
    data = []
    groups = [one.kind if one.kind in _KIND_COLOURS else "other kinds" for one in shown]
    for group in sorted(set(groups), key=lambda name: (name not in _KIND_COLOURS, groups.index(name))):
        rows = [(row, one) for row, one in enumerate(shown) if groups[row] == group]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": group,
                "y": [row for row, _ in rows],
                "x": [one.total_s * factor for _, one in rows],
                "width": 0.8,
                "marker": {"color": _KIND_COLOURS.get(group, GREY)},
                "customdata": [
                    [label(one.name, 100), seconds(one.total_s), f"{one.n:,}", share(one.share),
                     seconds(one.total_s / one.n) if one.n else "", label(one.kind, 24)]
                    for _, one in rows
                ],
                "hovertemplate": "%{customdata[0]} (%{customdata[5]})<br>"
                "%{customdata[1]}, %{customdata[3]} of all kernels<br>"
                "%{customdata[2]} launches, %{customdata[4]} on average<extra></extra>",
            }
        )  # fmt: skip
    return rows_figure(
        data,
        theme,
        labels=[label(kernel_name(one.name), 36) for one in shown],
        axis=f"time on the device in the window ({unit})",
        barmode="overlay",
    )


def _traced_operators(trace: TraceRecord, theme: Theme) -> go.Figure:
    shown = sorted(trace.operators, key=lambda one: -max(one.host_self_s, one.device_self_s))[:MAX_ROWS]
    unit, factor = seconds_scale(max(one.host_self_s, one.device_self_s) for one in shown)
    data: list[dict[str, Any]] = []
    for name, colour, values in (
        ("host, without what it calls", ORANGE, [one.host_self_s for one in shown]),
        ("kernels it launched itself", BLUE, [one.device_self_s for one in shown]),
    ):
        if not any(values):
            continue
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": list(range(len(shown))),
                "x": [value * factor for value in values],
                "marker": {"color": colour},
                "customdata": [
                    [label(one.name, 80), seconds(value), number(one.calls), seconds(one.host_total_s),
                     seconds(one.device_total_s)]
                    for one, value in zip(shown, values, strict=True)
                ],
                "hovertemplate": "%{customdata[0]}<br>" + name + ": %{customdata[1]}<br>%{customdata[2]} calls<br>"
                "with what it calls: host %{customdata[3]}, device %{customdata[4]}<extra></extra>",
            }
        )  # fmt: skip
    return rows_figure(
        data,
        theme,
        labels=[label(one.name.removeprefix("aten::"), 32) for one in shown],
        axis=f"time in the window ({unit})",
        barmode="group",
    )
