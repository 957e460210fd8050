"""The roofline: compute cost of modules and operators, and the limits of the device."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from lightning_perf.records import Ceilings, Session
from lightning_perf.reports.sections.model import bound_name, flops_in
from lightning_perf.reports.wording import line, number, seconds, share
from lightning_perf.stats.roofline import intensity, module_s, work_of

from .palette import BLUE, GRAY, ORANGE, SERIES, Theme
from .parts import Figure, figure, label

_SMALLEST_PX, _LARGEST_PX = 8, 26


class _Work(NamedTuple):
    """A piece of work as a point of the roofline; ``part`` is its share of the time of its kind."""

    name: str
    intensity: float
    flops_per_s: float
    spent_s: float
    part: float
    bound: str


def roofline(session: Session, theme: Theme = "light") -> Figure | None:
    """Return modules and operators by FLOP/byte and FLOP/s, with the peaks measured on the device.

    Williams, Waterman, Patterson (2009), https://doi.org/10.1145/1498765.1498785. Bytes are counted without caches, so
    a point can be above the slope.
    """
    profile = session.model_profile
    if profile is None:
        return None
    modules = ((each.path or "outside modules", *work_of(each), module_s(each), each.bound) for each in profile.modules)
    operators = (
        (f"{each.name.removeprefix('aten::')} {each.dtype}", each.flops, each.n_bytes, each.total_s, each.bound)
        for each in profile.operators
    )
    works = [("modules", BLUE, "circle", _works(modules)), ("operators", ORANGE, "diamond", _works(operators))]
    points = [work for _, _, _, some in works for work in some]
    if not points:
        return None
    data = _ceilings(profile.ceilings, profile.precision, points) if profile.ceilings is not None else []
    for name, color, symbol, some in works:
        if some:
            data.append(_cloud(name, color, symbol, some))
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
    """Return the whole powers of ten around all values, as exponents."""
    logs = [math.log10(value) for trace in data for value in trace[axis]]
    return [math.floor(min(logs) - 0.1), math.ceil(max(logs) + 0.1)]


def _works(items: Iterable[tuple[str, int, int, float | None, str | None]]) -> list[_Work]:
    """Return the points of items given as name, operations, bytes, seconds and limit, if all of these are known."""
    known = list(items)
    whole_s = sum(spent_s or 0.0 for _, _, _, spent_s, _ in known)
    found = []
    for name, n_flops, n_bytes, spent_s, bound in known:
        at = intensity(n_flops, n_bytes)
        if at and spent_s and _has_place(at, n_flops / spent_s):
            found.append(_Work(line(name, 60), at, n_flops / spent_s, spent_s, spent_s / whole_s, bound or ""))
    return found


def _has_place(*values: float) -> bool:
    """Return whether logarithmic axes can show the values."""
    return all(0 < value < math.inf for value in values)


def _cloud(name: str, color: str, symbol: str, works: list[_Work]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "x": [work.intensity for work in works], "y": [work.flops_per_s for work in works],
        "marker": {
            "color": color, "symbol": symbol, "opacity": 0.85,
            # The area grows with the share of the time.
            "size": [_SMALLEST_PX + (_LARGEST_PX - _SMALLEST_PX) * math.sqrt(min(work.part, 1.0)) for work in works],
        },
        "customdata": [
            [label(work.name, 60), number(work.intensity), flops_in(work.flops_per_s, "FLOP/s"), seconds(work.spent_s),
             share(work.part), f"{bound_name(work.bound)}-bound" if work.bound else "limit unknown"]
            for work in works
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} FLOP/byte, %{customdata[2]}<br>"
        "%{customdata[3]} per step, %{customdata[4]} of all " + name + "<br>%{customdata[5]}<extra></extra>",
    }  # fmt: skip


def _ceilings(ceilings: Ceilings, own: str, points: list[_Work]) -> list[dict[str, Any]]:
    """Return the measured peak of each precision: copy bandwidth up to the ridge, then matrix multiplication."""
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
        ridge = speed / rate
        line = {"color": SERIES[(i + 2) % len(SERIES)], "width": 1.5, "dash": dashes[i % len(dashes)]}
        data.append({
            "type": "scatter", "mode": "lines", "x": [left, ridge, right], "y": [left * rate, speed, speed],
            "name": f"ceiling in {label(precision, 12)}: {flops_in(speed, 'FLOP/s')}",
            "line": {"color": GRAY, "width": 3, "dash": "solid"} if precision == own else line,
            "hovertemplate": f"{label(precision, 12)}: %{{y:.3s}}FLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
        })  # fmt: skip
    return data
