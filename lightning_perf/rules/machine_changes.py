"""What the machine did differently from some moment of the run on."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from lightning_perf.records import Evidence, Session

from .thresholds import CHANGE_MIN, CHANGES_SHOWN, LOST_CORES_MAX_IDLE, LOST_CORES_MIN, MIN_CHANGE_POINTS


def changes_at(session: Session, at_s: float) -> tuple[Evidence, ...]:
    """Return the sampled figures that changed most at a moment, as evidence; empty without enough samples around it.

    Args:
        session: With telemetry.
        at_s: Seconds since the start of the run.
    """
    found: list[tuple[float, Evidence]] = []
    for metric, was, became, n_after in _sides(session, at_s):
        is_fraction = metric.endswith("_fraction")
        change = abs(became - was) / (1.0 if is_fraction else max(abs(was), 1e-9))
        if change >= CHANGE_MIN and max(abs(was), abs(became)) > 0:
            found.append((change, Evidence(metric=f"{_words(metric)} then: was {was:.4g}, became", value=became,
                                           unit=_unit(metric), n=n_after)))  # fmt: skip
    return tuple(evidence for _, evidence in sorted(found, key=lambda one: -one[0])[:CHANGES_SHOWN])


def has_lost_cores(session: Session, at_s: float) -> bool:
    """Return whether other programs or virtual machines took cores from the training from a moment on.

    Less of the cores alone does not say so: a training that begins to wait uses less as well, but then nobody uses
    what it leaves.
    """
    sides = {metric: (was, became) for metric, was, became, _ in _sides(session, at_s)}
    if not {"process_cpu_cores", "cpu_busy_fraction"} <= sides.keys():
        return False
    (own_was, own_became), (busy_was, busy_became) = sides["process_cpu_cores"], sides["cpu_busy_fraction"]
    lost = own_was - own_became
    left = session.machine.usable_cores * (busy_was - busy_became)
    return lost >= LOST_CORES_MIN * own_was and lost > 0 and left <= LOST_CORES_MAX_IDLE * lost


def _sides(session: Session, at_s: float) -> Iterator[tuple[str, float, float, int]]:
    """Yield each sampled figure: name, medians before and after a moment, number of points after it."""
    points = session.telemetry.timeline if session.telemetry is not None else ()
    before = [point for point in points if point.step > 0 and point.start_s < at_s]
    after = [point for point in points if point.start_s >= at_s]
    for metric in sorted({name for point in points for name in point.values}):
        sides = [[point.values[metric] for point in side if metric in point.values] for side in (before, after)]
        if min(map(len, sides)) >= MIN_CHANGE_POINTS:
            yield metric, statistics.median(sides[0]), statistics.median(sides[1]), len(sides[1])


_UNITS = {
    "_fraction": "fraction",
    "_bytes_per_s": "bytes/s",
    "_bytes": "bytes",
    "_mhz": "MHz",
    "_cores": "cores",
    "_c": "degrees Celsius",
    "_w": "W",
}
"""How a figure's name ends → its unit."""


def _words(metric: str) -> str:
    suffix = next((suffix for suffix in _UNITS if metric.endswith(suffix)), "")
    return metric.removesuffix(suffix).replace("_", " ")


def _unit(metric: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if metric.endswith(suffix)), "")
