"""Time and memory over the run: steps, epochs, earlier runs, and memory until it ran out."""

import math
from statistics import fmean
from typing import Any

from lightning_perf.records import PHASES, STEP_PHASES, Session
from lightning_perf.reports.sections.earlier import changes_text
from lightning_perf.reports.sections.phases import FOLDED_BELOW_SHARE
from lightning_perf.reports.sections.verdict import step_word
from lightning_perf.reports.wording import phase_name, seconds, size

from .palette import GRAY, PHASE_COLORS, PHASE_PATTERNS, RED, Theme
from .parts import Figure, bytes_scale, figure, label, seconds_scale, stacked, vertical_line

MAX_EPOCH_BARS = 200
"""Above this number, each bar is the mean of neighboring epochs: bars stay about four pixels wide."""


def epochs(session: Session, theme: Theme = "light") -> Figure | None:
    """Return the wall time of each epoch by phase; means of neighbors if there are many epochs."""
    if not session.epochs:
        return None
    size = -(-len(session.epochs) // MAX_EPOCH_BARS)
    groups = [session.epochs[i : i + size] for i in range(0, len(session.epochs), size)]
    unit, factor = seconds_scale(epoch.wall_s for epoch in session.epochs)
    names = [f"epoch {g[0].index}" if len(g) == 1 else f"epochs {g[0].index}–{g[-1].index}, mean" for g in groups]
    width = 0.8 if size == 1 else size
    means_of = {phase: [fmean(epoch.phases.get(phase, 0.0) for epoch in group) for group in groups] for phase in PHASES}
    xs = [(group[0].index + group[-1].index) / 2 for group in groups]
    data = stacked_bars(means_of, xs, names, factor, width)
    ticks = {"dtick": 1} if len(session.epochs) <= 20 else {}
    axis = {"title": {"text": "epoch"}, **ticks}
    return stacked(data, theme, axis, f"wall time of an epoch ({unit})", barmode="stack")


def timeline(session: Session, theme: Theme = "light") -> Figure | None:
    """Return the step time over the run by phase, with the slowest steps and the profiler windows."""
    blocks = session.steady.timeline if session.steady is not None else ()
    if not blocks or session.steady is None:
        return None
    unit, factor = seconds_scale(block.step_s for block in blocks)
    # One more point ends the last block.
    xs = [block.first_step for block in blocks]
    xs.append(blocks[-1].first_step + blocks[-1].n_steps)
    word = step_word(session)
    data: list[dict[str, Any]] = []
    means_of = {phase: [block.phases.get(phase, 0.0) for block in blocks] for phase in STEP_PHASES}
    for phase, name, means in _folded(means_of):
        means.append(means[-1])
        data.append({
            "type": "scatter", "mode": "lines", "stackgroup": "phases", "name": name,
            "x": xs, "y": [mean * factor for mean in means], "fillcolor": PHASE_COLORS[phase],
            "line": {"shape": "hv", "width": 0.5, "color": PHASE_COLORS[phase]},
            "customdata": [[seconds(mean)] for mean in means],
            "hovertemplate": f"{word} %{{x}}: {name} %{{customdata[0]}}<extra></extra>",
        })  # fmt: skip
    slowest = [block.max_step_s * factor for block in blocks]
    data.append({
        "type": "scatter", "mode": "lines", "name": f"slowest {word}", "x": xs, "y": [*slowest, slowest[-1]],
        "line": {"shape": "hv", "width": 1, "color": GRAY, "dash": "dot"},
        "customdata": [[seconds(block.max_step_s)] for block in (*blocks, blocks[-1])],
        "hovertemplate": f"slowest {word} nearby: %{{customdata[0]}}<extra></extra>",
        "visible": True if max(slowest) <= 5 * max(block.step_s for block in blocks) * factor else "legendonly",
    })  # fmt: skip
    recorded = [window for window in session.windows if window.status == "recorded"]
    shapes = [
        {"type": "rect", "xref": "x", "x0": window.first_step, "x1": window.first_step + max(window.n_steps, 1),
         "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1.5, "color": GRAY, "dash": "dash"}, "layer": "above"}
        for window in recorded[:50]
    ]  # fmt: skip
    notes = [
        {"text": "profiler window", "xref": "x", "x": window.first_step, "xanchor": "left",
         "yref": "paper", "y": 1, "yanchor": "top"}
        for window in recorded[:1]
    ]  # fmt: skip
    axis = {"title": {"text": word}}
    return stacked(data, theme, axis, f"mean {word} ({unit})", shapes=shapes, annotations=notes)


def earlier_runs(session: Session, theme: Theme = "light") -> Figure | None:
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
    ticks = {"tickvals": xs, "ticktext": [label(each.started_at[5:16].replace("T", " ")) for each in runs]}
    title, marks = f"time per step ({unit})", [vertical_line(i - 0.5) for i in changed]
    return stacked(data, theme, ticks, title, barmode="stack", shapes=marks, annotations=notes)


def memory_before_oom(session: Session, theme: Theme = "light") -> Figure | None:
    """Return the course of memory up to where it ran out."""
    oom = session.memory.oom
    if oom is None or len(oom.timeline) < 2:
        return None
    unit, factor = bytes_scale(n_bytes for _, n_bytes in oom.timeline)
    line = {
        "type": "scatter", "mode": "lines+markers", "line": {"color": RED},
        "x": [step for step, _ in oom.timeline], "y": [n_bytes * factor for _, n_bytes in oom.timeline],
        "customdata": [[size(n_bytes)] for _, n_bytes in oom.timeline],
        "hovertemplate": "step %{x}: %{customdata[0]}<extra></extra>",
    }  # fmt: skip
    xaxis = {"title": {"text": "step"}, "showgrid": False}
    title = f"{'allocated' if oom.where == 'device' else 'resident'} ({unit})"
    return figure([line], theme, height=280, xaxis=xaxis, yaxis={"title": {"text": title}, "rangemode": "tozero"})


def stacked_bars(
    values_of: dict[str, list[float]], xs: list[float], names: list[str], factor: float, width: float = 0.8
) -> list[dict[str, Any]]:
    """Return bars of seconds by phase, as plotly's JSON; ``factor`` scales them, ``names`` are shown on hovering."""
    return [
        {
            "type": "bar", "name": name, "width": width, "x": xs, "y": [value * factor for value in values],
            "marker": {"color": PHASE_COLORS.get(phase, GRAY),
                       "pattern": {"shape": PHASE_PATTERNS.get(phase, ""), "size": 6, "solidity": 0.35}},
            "customdata": [[where, seconds(value)] for where, value in zip(names, values, strict=True)],
            "hovertemplate": "%{customdata[0]}<br>" + name + ": %{customdata[1]}<extra></extra>",
        }
        for phase, name, values in _folded(values_of)
    ]  # fmt: skip


def _folded(series: dict[str, list[float]]) -> list[tuple[str, str, list[float]]]:
    """Return phase, name and values; phases that are small everywhere are added to ``other``."""
    totals = [sum(value for value in values if math.isfinite(value)) for values in zip(*series.values(), strict=True)]
    kept, rest, n_folded = [], [0.0] * len(totals), 0
    for phase, values in series.items():
        # NaN counts as visible, so that the gap is shown.
        is_seen = any(
            not value < FOLDED_BELOW_SHARE * total for value, total in zip(values, totals, strict=True) if value
        )
        if is_seen and phase != "other":
            kept.append((phase, phase_name(phase), values))
        elif any(values):
            rest = [one + value for one, value in zip(rest, values, strict=True)]
            n_folded += 1
    if n_folded:
        kept.append(("other", "other" if n_folded == 1 and any(series.get("other", ())) else "other and smaller", rest))
    return kept
