"""How often a comparison of two sessions is right, on simulated trainings; writes docs/explanation/comparison.md.

Run: ``python benchmarks/comparison/run.py [--pairs N] [--write]`` (about three minutes with 1,000 pairs a row).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from simulated_sessions import simulated

from lightning_perf.records import TimeChange
from lightning_perf.stats.comparison import BAND, MIN_EPOCHS, RULED_OUT, compare_sessions
from lightning_perf.stats.single_runs import MIN_POINTS, MIN_RUNS_TO_TELL, USUAL_NOISE

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "comparison.md"
SLOWER = 1.1
USUAL: dict[str, Any] = {}
NOISES: dict[str, tuple[int, dict[str, Any]]] = {
    "usual: 1,000 steps, neighbours correlate by 0.6": (1, USUAL),
    "usual, two runs a side": (2, USUAL),
    "usual, three runs a side": (3, USUAL),
    "200 steps": (1, {"n_epochs": 2, "steps_an_epoch": 100}),
    "neighbours correlate by 0.9": (1, {"phi": 0.9}),
    "neighbours correlate by 0.9, steps differ by 5 %": (1, {"phi": 0.9, "within": 0.05}),
    "runs differ by 0.3 %": (1, {"between": 0.003}),
    "runs differ by 2 %": (1, {"between": 0.02}),
    "runs differ by 2 %, two runs a side": (2, {"between": 0.02}),
    "runs differ by 2 %, three runs a side": (3, {"between": 0.02}),
}


def main() -> None:
    """Simulates and prints, or writes, the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="simulated pairs a row")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    page = _page(arguments.pairs)
    print(page)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")


def _page(n: int) -> str:
    rows = "\n".join(_row(name, runs, noise, n) for name, (runs, noise) in NOISES.items())
    return f"""# How two sessions are compared

*Made by `benchmarks/comparison/run.py` ({n:,} simulated pairs a row, fixed seeds).*

`lightning-perf compare BASE NEW` sets two recorded sessions beside each other. Other than a
[trial](statistics.md), which makes several interleaved runs of each arm, it has what was recorded anyway: often one run
a side. This page says what can be known from that.

## Two kinds of doubt

**Within a run** steps differ, and neighbours resemble each other, so a thousand steps are worth far fewer. The session
keeps the course of its steady steps as at most 512 means in order. They are cut into 4 to 32 batches; each counts with
its median, so that one long pause does not stand for the run; the spread of the batches gives the interval, widened
where neighbouring batches still correlate. It needs {MIN_POINTS} points of the timeline.

**Between runs** there is more: the layout of memory, the clock that the machine granted, what else ran. One run cannot
tell that. So the interval is widened by what two runs of one training usually differ by (±{USUAL_NOISE:.0%}), by what a
trial of this training measured where one of the sessions holds one, or by what the runs of a side differ by where that
is more. From {MIN_RUNS_TO_TELL} runs a side on, what runs differ by is measured: the interval is then Welch's over the
runs, as in a trial.

Two figures are judged. *A step, typical* is the level of the steady steps. *A step, all included* is the wall time of
whole epochs by their steps, with validation, checkpoints and what else is between; from a single run it has an interval
where there are {MIN_EPOCHS} epochs after the first.

## What is said

| the 95 % interval of new ÷ base | verdict |
|:--|:--|
| wholly above {1 + BAND:.2f} | `slower` |
| wholly below its inverse | `faster` |
| neither, and a change of {RULED_OUT:.0%} is ruled out | `no_change` |
| neither, and it is not | `inconclusive` |

The band of {BAND:.0%} is what a finding must gain to be more than `info`. `--fail-on-regression PCT` fails only when
the whole interval of either figure lies beyond PCT.

## How often it is right

Simulated trainings of 5 epochs of 200 steps (where not said otherwise): steps differ by 10 %, one step in a hundred
takes five times as long, runs differ by 1 %. *Holds the truth*: of all intervals of the typical step. *False alarms*:
pairs of the same training that are called slower or faster. The last column plants a regression of {SLOWER - 1:.0%}.

| noise | holds the truth | false alarms | `no_change` | false alarms at a gate of 5 % | {SLOWER - 1:.0%} found |
|:--|--:|--:|--:|--:|--:|
{rows}

Read: what makes a comparison of single runs weak are short runs and machines on which runs differ by more than usual.
Where runs differ by 2 %, intervals of single runs hold the truth too rarely: nothing in them can tell. On shared
machines, such as those of public CI, make three runs a side or more, in turn, in one job
([how](../how-to/ci-gate.md)).
"""


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
