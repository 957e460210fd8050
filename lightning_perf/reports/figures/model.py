"""What the model's arithmetic costs, and how far it is from what the device can do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_perf.records import Ceilings, ModelProfile, ModuleProfile, Session
from lightning_perf.reports.sections.model import bound_name, flops_in
from lightning_perf.reports.wording import line, number, seconds, share
from lightning_perf.stats.roofline import intensity, module_s, work_of

from .palette import BLUE, GREY, ORANGE, SERIES, SKY, Theme
from .parts import figure, label, rows_figure, seconds_scale

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_MODULES = 16
_SMALLEST_PX, _LARGEST_PX = 8, 26


class _Work(NamedTuple):
    """A piece of work as a point of the roofline; ``part`` is its share of the time of its kind."""

    name: str
    intensity: float
    flops_per_s: float
    spent_s: float
    part: float
    bound: str


def modules(session: Session, theme: Theme = "light") -> go.Figure | None:
    """Time of the modules in a step, forward and backward; their arithmetic where they were not timed."""
    profile = session.model_profile
    if profile is None:
        return None
    timed = [one for one in profile.modules if module_s(one)]
    if timed:
        shown = sorted(timed, key=lambda one: -(module_s(one) or 0.0))[:MAX_MODULES]
        unit, factor = seconds_scale(module_s(one) for one in shown)
        parts = (("forward", [one.forward_s for one in shown]), ("backward", [one.backward_s for one in shown]))
        axis = f"time in one step ({unit})"
    else:
        counted = [one for one in profile.modules if work_of(one)[0]]
        if not counted:
            return None
        shown = sorted(counted, key=lambda one: -work_of(one)[0])[:MAX_MODULES]
        factor, axis = 1e-9, "arithmetic of one step (GFLOP); times were not measured"
        parts = (
            ("forward", [one.forward_flops for one in shown]),
            ("backward", [one.backward_flops for one in shown]),
        )
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(range(len(shown))),
            "x": [None if value is None else value * factor for value in values],
            "marker": {"color": colour},
            "customdata": [_told(one) for one in shown],
            "hovertemplate": "%{customdata[0]}<br>forward %{customdata[1]}, backward %{customdata[2]}<br>"
            "%{customdata[3]}<br>%{customdata[4]}<extra></extra>",
        }
        for (name, values), colour in zip(parts, (BLUE, SKY), strict=True)
        if any(values)
    ]
    return rows_figure(
        data,
        theme,
        labels=[label(one.path or "outside modules", 32) for one in shown],
        axis=axis,
        barmode="stack",
    )


def roofline(session: Session, theme: Theme = "light") -> go.Figure | None:
    """Modules and operators by operations a byte and a second, under the ceilings measured on the device.

    Williams, Waterman, Patterson (2009). Bytes are counted as if nothing stayed in a cache, so a point may lie above
    the slope: it moved fewer.
    """
    profile = session.model_profile
    if profile is None:
        return None
    works = [("modules", BLUE, "circle", _modules(profile)), ("operators", ORANGE, "diamond", _operators(profile))]
    points = [work for _, _, _, some in works for work in some]
    if not points:
        return None
    data = _ceilings(profile.ceilings, profile.precision, points) if profile.ceilings is not None else []
    for name, colour, symbol, some in works:
        if some:
            data.append(_cloud(name, colour, symbol, some))
    missing = "the ceilings of this device were not measured"
    notes = [{"x": 1, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "right", "yanchor": "top", "text": missing}]
    axis = {"type": "log", "dtick": 1, "exponentformat": "SI"}
    return figure(
        data,
        theme,
        height=440,
        has_legend=True,
        annotations=[] if len(data) > sum(bool(some) for _, _, _, some in works) else notes,
        xaxis={"title": {"text": "arithmetic intensity (FLOP/byte)"}, "range": _decades(data, "x"), **axis},
        yaxis={"title": {"text": "arithmetic rate (FLOP/s)"}, "range": _decades(data, "y"), **axis},
    )


def _decades(data: list[dict[str, Any]], axis: str) -> list[float]:
    """Whole powers of ten around all values, as exponents."""
    logs = [math.log10(value) for trace in data for value in trace[axis]]
    return [math.floor(min(logs) - 0.1), math.ceil(max(logs) + 0.1)]


def _told(module: ModuleProfile) -> list[str]:
    n_flops, _ = work_of(module)
    bound = f"{bound_name(module.bound)}-bound" if module.bound else "limit unknown"
    return [
        label(f"{module.path or 'outside modules'} {module.class_name}", 80),
        seconds(module.forward_s),
        seconds(module.backward_s),
        flops_in(n_flops, "FLOP"),
        bound + (f": {label(module.advice, 100)}" if module.advice else ""),
    ]


def _modules(profile: ModelProfile) -> list[_Work]:
    found = []
    whole_s = sum(module_s(one) or 0.0 for one in profile.modules)
    for one in profile.modules:
        n_flops, n_bytes = work_of(one)
        at = intensity(n_flops, n_bytes)
        spent_s = module_s(one)
        if at and spent_s and _has_place(at, n_flops / spent_s):
            name = line(one.path or "outside modules", 60)
            found.append(_Work(name, at, n_flops / spent_s, spent_s, spent_s / whole_s, one.bound or ""))
    return found


def _operators(profile: ModelProfile) -> list[_Work]:
    found = []
    whole_s = sum(one.total_s or 0.0 for one in profile.operators)
    for one in profile.operators:
        at = intensity(one.flops, one.n_bytes)
        if at and one.total_s and _has_place(at, one.flops / one.total_s):
            name = line(f"{one.name.removeprefix('aten::')} {one.dtype}", 60)
            found.append(_Work(name, at, one.flops / one.total_s, one.total_s, one.total_s / whole_s, one.bound or ""))
    return found


def _has_place(*values: float) -> bool:
    """Whether the values lie on logarithmic axes."""
    return all(0 < value < math.inf for value in values)


def _cloud(name: str, colour: str, symbol: str, works: list[_Work]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [work.intensity for work in works],
        "y": [work.flops_per_s for work in works],
        "marker": {
            "color": colour,
            "symbol": symbol,
            # The area grows with the share of the time.
            "size": [_SMALLEST_PX + (_LARGEST_PX - _SMALLEST_PX) * math.sqrt(min(work.part, 1.0)) for work in works],
            "opacity": 0.85,
        },
        "customdata": [
            [
                label(work.name, 60),
                number(work.intensity),
                flops_in(work.flops_per_s, "FLOP/s"),
                seconds(work.spent_s),
                share(work.part),
                f"{bound_name(work.bound)}-bound" if work.bound else "limit unknown",
            ]
            for work in works
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} FLOP/byte, %{customdata[2]}<br>"
        "%{customdata[3]} a step, %{customdata[4]} of all " + name + "<br>%{customdata[5]}<extra></extra>",
    }


def _ceilings(ceilings: Ceilings, own: str, points: list[_Work]) -> list[dict[str, Any]]:
    """The roof of each precision measured: the copy's slope up to the ridge, then level."""
    rate = ceilings.copy_bytes_per_s
    if not rate:
        return []
    known = [(name, speed) for name, speed in ceilings.matmul_flops_per_s.items() if _has_place(rate, speed / rate)]
    roofs = sorted(known, key=lambda roof: roof[1])
    if not roofs:
        return []
    intensities = [*(work.intensity for work in points), *(speed / rate for _, speed in roofs)]
    left, right = min(intensities) / 4, 4 * max(intensities)
    data = []
    dashes = ("dot", "dash", "longdash", "dashdot")
    for i, (precision, speed) in enumerate(roofs):
        is_own = precision == own
        ridge = speed / rate
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"ceiling in {label(precision, 12)}: {flops_in(speed, 'FLOP/s')}",
                "x": [left, ridge, right],
                "y": [left * rate, speed, speed],
                "line": {
                    "color": GREY if is_own else SERIES[(i + 2) % len(SERIES)],
                    "width": 3 if is_own else 1.5,
                    "dash": "solid" if is_own else dashes[i % len(dashes)],
                },
                "hovertemplate": f"{label(precision, 12)}: %{{y:.3s}}FLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
            }
        )
    return data
