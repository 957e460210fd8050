"""Expected speedups of findings, and measured speedups of trials."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from lightning_perf.records import Gain, Interval, Rung, Session
from lightning_perf.reports import wording
from lightning_perf.reports.sections.findings import ordered_findings

from .palette import BLUE, GRAY, GREEN, ORANGE, RED, SEVERITY_COLORS, Theme
from .parts import Figure, figure, label, rows_axis, rows_height, vertical_line

MAX_FINDINGS = 24
_WIDEST_GAIN = 100.0  # bars are cut at this speedup
_KEPT = {"improved": GREEN, "regressed": RED}


def findings(session: Session, theme: Theme = "light") -> Figure | None:
    """Return the expected speedup of each finding, the verdict's first."""
    known = ((one, one.gain) for one in ordered_findings(session) if one.gain is not None and wording.gain(one.gain))
    shown = list(islice(known, MAX_FINDINGS))
    if not shown:
        return None
    span_s = session.steady.span_s if session.steady is not None else 0.0
    claims = [sum(one.claims.values()) / span_s if span_s > 0 else 0.0 for one, _ in shown]
    bars = {
        **_ranges(list(enumerate(gain for _, gain in shown))),
        "marker": {"color": [SEVERITY_COLORS[one.severity] for one, _ in shown]},
        "text": [wording.gain(gain) for _, gain in shown],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [
            [label(f"{one.code} {one.name}", 80), one.severity, wording.certainty(one),
             f"{wording.share(claim)} of the steady time" if claim else "unknown"]
            for (one, _), claim in zip(shown, claims, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}<br>speedup %{text}, cause %{customdata[2]}<br>"
        "time it accounts for: %{customdata[3]}<br>severity: %{customdata[1]}<extra></extra>",
    }  # fmt: skip
    widest = max(min(gain.high, _WIDEST_GAIN) for _, gain in shown)
    axis = {"title": {"text": "expected speedup (x)"}, "range": [1, 1 + 1.25 * max(widest - 1, 0.1)], "zeroline": False}
    names = [label(f"{one.code} {one.name}") for one, _ in shown]
    return figure([bars], theme, height=rows_height(len(shown)), xaxis=axis, yaxis=rows_axis(names))


def _ranges(rows: Sequence[tuple[int, Gain]]) -> dict[str, Any]:
    """Return horizontal bars from the lowest to the highest speedup, by row."""
    return {
        "type": "bar", "orientation": "h", "y": [row for row, _ in rows],
        "base": [min(gain.low, _WIDEST_GAIN) for _, gain in rows],
        "x": [max(min(gain.high, _WIDEST_GAIN) - min(gain.low, _WIDEST_GAIN), 0.004) for _, gain in rows],
    }  # fmt: skip


def trials(session: Session, theme: Theme = "light") -> Figure | None:
    """Return the ladder of each trial: measured speedups with their 95 % CI, and predicted ones."""
    rungs = [(trial, rung) for trial in session.trials for rung in trial.ladder if rung.added and rung.speedup]
    if not rungs:
        return None
    signs = ["+" if rung.is_kept else "−" for _, rung in rungs]
    labels = [label(f"{sign} {rung.added}", 44) for sign, (_, rung) in zip(signs, rungs, strict=True)]
    if len({id(trial) for trial, _ in rungs}) > 1:
        numbers = {id(trial): i + 1 for i, trial in enumerate(session.trials)}
        labels = [f"trial {numbers[id(trial)]}: {one}" for one, (trial, _) in zip(labels, rungs, strict=True)]
    data: list[dict[str, Any]] = []
    predicted = [(row, rung.predicted) for row, (_, rung) in enumerate(rungs) if rung.predicted is not None]
    if predicted:
        name = "predicted for the treatment alone"
        data.append({
            **_ranges(predicted), "name": name, "width": 0.7, "marker": {"color": ORANGE, "opacity": 0.35},
            "customdata": [[wording.gain(gain)] for _, gain in predicted],
            "hovertemplate": f"{name}: %{{customdata[0]}}<extra></extra>",
        })  # fmt: skip
    for name, is_kept, symbol in (("kept", True, "circle"), ("left out", False, "x")):
        rows = [(row, rung, rung.speedup) for row, (_, rung) in enumerate(rungs) if rung.is_kept is is_kept]
        points = [(row, rung, speedup) for row, rung, speedup in rows if speedup is not None]
        if points:
            data.append(_speedup_markers(f"measured, {name}", symbol, points))
    intervals = [rung.speedup for _, rung in rungs if rung.speedup is not None]
    ends = [min(one.high, _WIDEST_GAIN) for one in intervals] + [gain.high for _, gain in predicted]
    starts = [max(one.low, 0.0) for one in intervals]
    low, high = min([1.0, *starts]), max([1.05, *(min(end, _WIDEST_GAIN) for end in ends)])
    margin = 0.08 * (high - low)
    return figure(
        data,
        theme,
        height=rows_height(len(rungs)),
        has_legend=True,
        shapes=[vertical_line(1)],
        xaxis={"title": {"text": "speedup over the baseline (x), 95 % CI"},
               "range": [low - margin, high + margin], "zeroline": False},
        yaxis=rows_axis(labels),
    )  # fmt: skip


def _speedup_markers(name: str, symbol: str, points: list[tuple[int, Rung, Interval]]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "x": [speedup.value for _, _, speedup in points], "y": [row for row, _, _ in points],
        "error_x": {
            "type": "data", "symmetric": False, "thickness": 2, "color": GRAY,
            "array": [max(speedup.high - speedup.value, 0.0) for _, _, speedup in points],
            "arrayminus": [max(speedup.value - speedup.low, 0.0) for _, _, speedup in points],
        },
        "marker": {"symbol": symbol, "size": 11, "color": [_KEPT.get(rung.verdict, BLUE) for _, rung, _ in points]},
        "customdata": [
            [wording.times(s.value), f"{wording.times(s.low)} to {wording.times(s.high)}",
             wording.times(rung.step_gain.value) if rung.step_gain is not None else wording.UNKNOWN,
             rung.verdict.replace("_", " ")]
            for _, rung, s in points
        ],
        "hovertemplate": "%{customdata[0]} (%{customdata[1]})<br>over the rung below: %{customdata[2]}<br>"
        "%{customdata[3]}<extra></extra>",
    }  # fmt: skip
