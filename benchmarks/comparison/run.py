"""Measure how often a comparison of two sessions is right on simulated trainings; write docs/explanation/comparison.md.

Run: ``python benchmarks/comparison/run.py [--pairs N] [--write]`` (about three minutes with 1,000 pairs per row).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from simulated_sessions import simulated

from lightning_perf.records import TimeChange
from lightning_perf.stats.comparison import BAND, MIN_EPOCHS, RULED_OUT, compare_sessions
from lightning_perf.stats.single_runs import MIN_POINTS, MIN_RUNS_PER_SIDE, USUAL_NOISE

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "comparison.md"
SLOWER = 1.1
USUAL: dict[str, Any] = {}
NOISES: dict[str, tuple[int, dict[str, Any]]] = {
    "usual: 1,000 steps, consecutive steps correlate by 0.6": (1, USUAL),
    "usual, two runs per side": (2, USUAL),
    "usual, three runs per side": (3, USUAL),
    "200 steps": (1, {"n_epochs": 2, "steps_an_epoch": 100}),
    "consecutive steps correlate by 0.9": (1, {"phi": 0.9}),
    "consecutive steps correlate by 0.9, steps differ by 5 %": (1, {"phi": 0.9, "within": 0.05}),
    "runs differ by 0.3 %": (1, {"between": 0.003}),
    "runs differ by 2 %": (1, {"between": 0.02}),
    "runs differ by 2 %, two runs per side": (2, {"between": 0.02}),
    "runs differ by 2 %, three runs per side": (3, {"between": 0.02}),
}


def main() -> None:
    """Simulate; print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="simulated pairs per row")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    page = _page(arguments.pairs)
    print(page)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")


def _page(n: int) -> str:
    rows = "\n".join(_row(name, runs, noise, n) for name, (runs, noise) in NOISES.items())
    return f"""# How two sessions are compared

*Written by `benchmarks/comparison/run.py` ({n:,} simulated pairs per row, fixed seeds).*

`lightning-perf compare BASE NEW` compares two recorded sessions. A [trial](statistics.md) makes several interleaved
runs per arm; a comparison uses existing sessions, often one per side. This page says what it can show.

## Two sources of noise

**Within a run**, steps differ and consecutive steps are correlated, so a thousand steps carry far less information
than a thousand independent values. The session stores the steady steps as at most 512 means in order. They are
divided into 4 to 32 batches, each represented by its median, so that one long pause does not dominate. The spread of
the batches gives the interval, widened if consecutive batches are still correlated. This needs {MIN_POINTS} points of
the timeline.

**Between runs** there is more: memory layout, CPU clock, other programs. One run cannot show this. So the interval is
widened by the usual difference between two runs of one training (±{USUAL_NOISE:.0%}), by the noise that a trial of
this training measured if a session contains one, or by the difference between the runs of one side if that is larger.
From {MIN_RUNS_PER_SIDE} runs per side on, the difference between runs is measured: the interval is Welch's over the
runs, as in a trial.

Two figures are compared. *Time per step* is the level of the steady steps. *Time per step including validation and
epoch overhead* is the wall time of whole epochs divided by their steps; for a single run it has an interval if there
are {MIN_EPOCHS} epochs after the first.

## Verdicts

| the 95 % interval of new ÷ base | verdict |
|:--|:--|
| entirely above {1 + BAND:.2f} | `slower` |
| entirely below its inverse | `faster` |
| neither, and a change of {RULED_OUT:.0%} is excluded | `no_change` |
| neither, and it is not excluded | `inconclusive` |

The band of {BAND:.0%} is the speedup that a finding needs to be more than `info`. `--fail-on-regression PCT` fails
only if the whole interval of either figure is beyond PCT.

## How often it is right

Simulated trainings of 5 epochs of 200 steps unless stated otherwise: steps differ by 10 %, one step in a hundred
takes five times as long, runs differ by 1 %. *Coverage*: of all intervals of the time per step. *False positives*:
pairs of the same training that are called slower or faster. The last column plants a regression of {SLOWER - 1:.0%}.

| noise | coverage | false positives | `no_change` | false positives at a gate of 5 % | {SLOWER - 1:.0%} found |
|:--|--:|--:|--:|--:|--:|
{rows}

A comparison of single runs is weak if runs are short or differ by more than usual. If runs differ by 2 %, intervals
of single runs cover the truth too rarely, and nothing in the runs shows it. On shared machines, such as those of
public CI, make three or more runs per side, alternately, in one job ([how](../how-to/ci-gate.md))."""


def _row(name: str, runs: int, noise: dict[str, Any], n: int) -> str:
    held = alarms = same = gated = found = 0
    for i in range(n):
        seeds = range(2 * runs * i, 2 * runs * (i + 1))
        base = [("", simulated(seed, **noise)) for seed in seeds[::2]]
        step, wall = compare_sessions(base, [("", simulated(seed, **noise)) for seed in seeds[1::2]]).times[:2]
        slower = [("", simulated(seed, slower=SLOWER, **noise)) for seed in seeds[1::2]]
        planted = compare_sessions(base, slower).times[0]
        held += step.ratio is not None and step.ratio.low <= 1 <= step.ratio.high
        alarms += step.change in ("slower", "faster")
        same += step.change == "no_change"
        gated += _is_beyond(step, 0.05) or _is_beyond(wall, 0.05)
        found += planted.change == "slower"
    figures = " | ".join(f"{count / n:.1%}" for count in (held, alarms, same, gated, found))
    return f"| {name} | {figures} |"


def _is_beyond(change: TimeChange, fraction: float) -> bool:
    return change.ratio is not None and change.ratio.low > 1 + fraction


if __name__ == "__main__":
    main()
