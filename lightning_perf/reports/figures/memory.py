"""What memory holds, by phase, and whether it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_perf.records import Session
from lightning_perf.reports.sections.memory import memory_rows
from lightning_perf.reports.wording import count, share, size

from .palette import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Theme
from .parts import bytes_scale, figure, label, rows_axis, rows_figure, rows_height, upright

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_MODULES = 12

_MODULE_PARTS = (
    ("parameters", "parameters_bytes", BLUE),
    ("gradients", "gradients_bytes", SKY),
    ("optimizer states", "optimizer_bytes", GREEN),
    ("buffers", "buffers_bytes", PURPLE),
    ("activations", "activations_bytes", ORANGE),
)


def memory_phases(session: Session, theme: Theme = "light") -> go.Figure | None:
    """Memory at the end of each phase of the step, median of the sampled steps: the device's, else the process's."""
    memory = session.memory
    device = next((one for one in memory.devices if one.phases), None)
    series: list[tuple[str, str, list[float | None]]]
    if device is not None:
        names = [phase.phase for phase in device.phases]
        samples = [phase.n for phase in device.phases]
        series = [
            ("allocated", BLUE, [float(phase.allocated_bytes) for phase in device.phases]),
            ("reserved from the driver", SKY, [float(phase.reserved_bytes) for phase in device.phases]),
        ]
        peaks: list[float | None] = [phase.peak_bytes for phase in device.phases]
        if any(peaks):
            series.append(("peak raised here", ORANGE, peaks))
        where = label(device.device, 16)
    elif memory.host is not None and memory.host.phases:
        names = [phase.phase for phase in memory.host.phases]
        samples = [phase.n for phase in memory.host.phases]
        series = [("resident memory of the process", BLUE, [float(phase.rss_bytes) for phase in memory.host.phases])]
        where = "host"
    else:
        return None
    unit, factor = bytes_scale(value for _, _, values in series for value in values)
    data = [
        {
            "type": "bar",
            "name": name,
            "x": list(range(len(names))),
            "y": [None if value is None else value * factor for value in values],
            "marker": {"color": colour},
            "customdata": [
                [f"after {label(phase, 24)}", size(value), count(n, "sampled step")]
                for phase, value, n in zip(names, values, samples, strict=True)
            ],
            "hovertemplate": name + " %{customdata[0]}: %{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        }
        for name, colour, values in series
    ]
    return figure(
        data,
        theme,
        height=300,
        has_legend=True,
        barmode="group",
        xaxis={
            "tickvals": list(range(len(names))),
            "ticktext": [f"after {label(name, 24)}" for name in names],
            "showgrid": False,
        },
        yaxis={"title": {"text": f"{where} ({unit})"}, "rangemode": "tozero"},
    )


def memory_peak(session: Session, theme: Theme = "light") -> go.Figure | None:
    """What the peak is made of, largest part first; on a CPU, what the tensors hold."""
    breakdown = session.memory.breakdown
    rows = memory_rows(breakdown) if breakdown is not None else []
    if not rows:
        return None
    unit, factor = bytes_scale(row.n_bytes for row in rows)
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(rows))),
        "x": [row.n_bytes * factor for row in rows],
        "marker": {
            "color": BLUE,
            "line": {"color": BLUE, "width": 1},
            # What was worked out rather than counted is hatched.
            "pattern": {"shape": ["/" if row.note else "" for row in rows], "size": 6, "solidity": 0.25},
        },
        "text": [f"{size(row.n_bytes)}, {share(row.share)}" for row in rows],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [[row.name, label(row.note, 160) or "counted"] for row in rows],
        "hovertemplate": "%{customdata[0]}: %{text}<br>%{customdata[1]}<extra></extra>",
    }
    return figure(
        [bars],
        theme,
        height=rows_height(len(rows)),
        xaxis={"title": {"text": f"memory ({unit})"}, "range": [0, 1.4 * max(row.n_bytes for row in rows) * factor]},
        yaxis=rows_axis([row.name for row in rows]),
    )


def memory_modules(session: Session, theme: Theme = "light") -> go.Figure | None:
    """What the top-level modules hold, largest first."""
    breakdown = session.memory.breakdown
    modules = breakdown.modules if breakdown is not None else ()
    totals = {id(one): sum(getattr(one, field) or 0 for _, field, _ in _MODULE_PARTS) for one in modules}
    shown = sorted((one for one in modules if totals[id(one)]), key=lambda one: -totals[id(one)])[:MAX_MODULES]
    if not shown:
        return None
    unit, factor = bytes_scale(totals[id(one)] for one in shown)
    data = []
    for name, field, colour in _MODULE_PARTS:
        values = [getattr(one, field) or 0 for one in shown]
        if any(values):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "y": list(range(len(shown))),
                    "x": [value * factor for value in values],
                    "marker": {"color": colour},
                    "customdata": [
                        [label(one.name or "outside modules", 80), size(value)]
                        for one, value in zip(shown, values, strict=True)
                    ],
                    "hovertemplate": "%{customdata[0]}<br>" + name + ": %{customdata[1]}<extra></extra>",
                }
            )
    return rows_figure(
        data,
        theme,
        labels=[label(one.name or "outside modules", 32) for one in shown],
        axis=f"memory ({unit})",
        barmode="stack",
    )


def memory_growth(session: Session, theme: Theme = "light") -> go.Figure | None:
    """The trend of memory, place by place, with its 95 % interval; one that spans 0 is no growth."""
    shown = session.memory.growth
    if not shown:
        return None
    ends = [1000 * end for one in shown for end in (one.low_bytes_per_step, one.high_bytes_per_step)]
    unit, factor = bytes_scale([*ends, *(1000 * one.bytes_per_step for one in shown)])
    grows = [one.is_steady and one.low_bytes_per_step > 0 for one in shown]
    points: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [1000 * one.bytes_per_step * factor for one in shown],
        "y": list(range(len(shown))),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [1000 * max(one.high_bytes_per_step - one.bytes_per_step, 0.0) * factor for one in shown],
            "arrayminus": [1000 * max(one.bytes_per_step - one.low_bytes_per_step, 0.0) * factor for one in shown],
            "thickness": 2,
            "color": GREY,
        },
        "marker": {"size": 11, "color": [RED if one else BLUE for one in grows]},
        "customdata": [
            [
                label(one.where, 16),
                size(1000 * one.bytes_per_step),
                f"{size(1000 * one.low_bytes_per_step)} to {size(1000 * one.high_bytes_per_step)}",
                f"{count(one.n, 'reading')}, steps {one.first_step:,} to {one.last_step:,}",
                "steady growth" if is_growing else "no steady growth",
            ]
            for one, is_growing in zip(shown, grows, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}: %{customdata[4]}<br>%{customdata[1]} every 1,000 steps "
        "(%{customdata[2]})<br>%{customdata[3]}<extra></extra>",
    }
    return figure(
        [points],
        theme,
        height=rows_height(len(shown)),
        shapes=[upright(0)],
        xaxis={"title": {"text": f"growth every 1,000 steps ({unit}), 95 % interval"}},
        yaxis=rows_axis([label(one.where, 16) for one in shown]),
    )


def memory_before_oom(session: Session, theme: Theme = "light") -> go.Figure | None:
    """The course of memory up to where it ran out."""
    oom = session.memory.oom
    if oom is None or len(oom.timeline) < 2:
        return None
    unit, factor = bytes_scale(n_bytes for _, n_bytes in oom.timeline)
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [step for step, _ in oom.timeline],
        "y": [n_bytes * factor for _, n_bytes in oom.timeline],
        "line": {"color": RED},
        "customdata": [[size(n_bytes)] for _, n_bytes in oom.timeline],
        "hovertemplate": "step %{x}: %{customdata[0]}<extra></extra>",
    }
    what = "allocated" if oom.where == "device" else "resident"
    return figure(
        [line],
        theme,
        height=280,
        xaxis={"title": {"text": "step"}, "showgrid": False},
        yaxis={"title": {"text": f"{what} ({unit})"}, "rangemode": "tozero"},
    )
