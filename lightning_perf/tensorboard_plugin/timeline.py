"""The longest events of each thread and stream over time, for machines without Perfetto."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_perf.reports.figures.palette import BLUE, GRAY, GREEN, ORANGE, PURPLE, SKY, Theme
from lightning_perf.reports.figures.parts import Figure, figure, label, rows_axis, seconds_scale
from lightning_perf.reports.wording import count, seconds
from lightning_perf.traces import Trace
from lightning_perf.traces.kinds import ANNOTATION, KERNEL, MEMCPY, MEMSET, OPERATOR, RUNTIME

MAX_EVENTS = 300
"""Events per lane; bars of further events would be thinner than a pixel and slow down the page."""

MAX_THREADS, MAX_STREAMS, MAX_DEPTH = 4, 6, 8
_ROW_PX = 22

_KINDS = {
    ANNOTATION: ("steps and phases", PURPLE),
    OPERATOR: ("operators", GREEN),
    RUNTIME: ("runtime calls", SKY),
    KERNEL: ("kernels", BLUE),
    MEMCPY: ("copies", ORANGE),
    MEMSET: ("memory set", GRAY),
}
_HOST = (ANNOTATION, OPERATOR, RUNTIME)
_DEVICE = (KERNEL, MEMCPY, MEMSET)


class Event(NamedTuple):
    """One event: start and duration in seconds, and its nesting depth."""

    name: str
    kind: int
    start_s: float
    duration_s: float
    depth: int


class Lane(NamedTuple):
    """One thread or stream.

    Attributes:
        title: Name, such as "device 0, stream 7".
        events: The longest events, by start.
        n_left_out: Number of shorter events.
    """

    title: str
    events: tuple[Event, ...]
    n_left_out: int


def lanes_of(trace: Trace) -> tuple[Lane, ...]:
    """Return the threads with most time in operators and the busiest streams, each with its longest events."""
    host, device = trace.rows(*_HOST), trace.rows(*_DEVICE)
    found = [
        _lane(trace, host[trace.thread_ids[host] == thread], f"thread {trace.threads[thread][1]}")
        for thread in _busiest(trace, trace.thread_ids[host], host, MAX_THREADS)
    ]
    places = trace.devices[device].astype(np.int64) * 2**32 + trace.streams[device]
    for place in _busiest(trace, places, device, MAX_STREAMS):
        rows = device[places == place]
        ids = ("unknown" if of[rows[0]] < 0 else of[rows[0]] for of in (trace.devices, trace.streams))
        found.append(_lane(trace, rows, "device {}, stream {}".format(*ids)))
    return tuple(lane for lane in found if lane.events)


def draw(lanes: Sequence[Lane], theme: Theme = "light") -> Figure | None:
    """Return the lanes over a common time axis; None without lanes."""
    if not lanes:
        return None
    unit, factor = seconds_scale(event.start_s + event.duration_s for lane in lanes for event in lane.events)
    tops: list[int] = []
    names: list[str] = []
    for lane in lanes:
        tops.append(len(names))
        names += [lane.title] + [""] * max(event.depth for event in lane.events)
    bars = []
    for kind, (title, color) in _KINDS.items():
        shown = [
            (top + event.depth, event)
            for top, lane in zip(tops, lanes, strict=True)
            for event in lane.events
            if event.kind == kind
        ]
        if shown:
            bars.append({
                "type": "bar", "orientation": "h", "name": title, "y": [row for row, _ in shown],
                "base": [event.start_s * factor for _, event in shown],
                "x": [event.duration_s * factor for _, event in shown],
                "width": 0.9,  # plotly would otherwise fill the gaps between rows
                "marker": {"color": color, "line": {"width": 0.5, "color": "rgba(255,255,255,0.5)"}},
                "customdata": [[label(event.name, 120), seconds(event.duration_s)] for _, event in shown],
                "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            })  # fmt: skip
    n_left_out = sum(lane.n_left_out for lane in lanes)
    rest = f"; {count(n_left_out, 'shorter event')} left out" if n_left_out else ""
    return figure(
        bars,
        theme,
        height=len(names) * _ROW_PX + 130,
        has_legend=True,
        barmode="overlay",
        bargap=0.1,
        dragmode="zoom",
        hovermode="closest",
        xaxis={"title": {"text": f"time ({unit}){rest}"}},
        yaxis=rows_axis(names),
    )


def _busiest(trace: Trace, places: np.ndarray, rows: np.ndarray, most: int) -> list[int]:
    different, of = np.unique(places, return_inverse=True)
    spent = np.bincount(of, weights=trace.durations[rows], minlength=len(different))
    return [int(different[i]) for i in np.argsort(-spent, kind="stable")[:most]]


def _lane(trace: Trace, rows: np.ndarray, title: str) -> Lane:
    longest = np.sort(rows[np.argsort(-trace.durations[rows], kind="stable")[:MAX_EVENTS]])
    events = []
    open_ends: list[int] = []
    for row in longest.tolist():
        start, end = int(trace.starts[row]), int(trace.ends[row])
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        depth = min(len(open_ends), MAX_DEPTH)
        open_ends.append(end)
        name = trace.names[trace.name_ids[row]]
        events.append(Event(name, int(trace.kinds[row]), start * 1e-9, (end - start) * 1e-9, depth))
    return Lane(label(title), tuple(events), len(rows) - len(longest))
