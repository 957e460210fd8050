"""How often the statistics of a trial are right, on simulated machines; writes docs/explanation/statistics.md.

Run: ``python benchmarks/statistics/run.py [--trials N] [--write]`` (about five minutes with 4,000 trials a figure).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from simulated import (
    BLOCKS,
    NOISES,
    Noise,
    bca_bootstrap,
    calls,
    coverage,
    median_band,
    percentile_bootstrap,
    stopped_early,
    welch_with_drift_left_in,
)

from lightning_perf.stats.noise import MIN_BAND
from lightning_perf.stats.permutation import LEVEL, smallest_p
from lightning_perf.stats.verdicts import MAX_SAME
from lightning_perf.trials.ladder import Plan

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "statistics.md"
REPEATS = (2, 3, 5)
SPEEDUPS = (1.0, 1.03, 1.05, 1.1, 1.2, 1.5)
LEVELS = (0.003, 0.01, 0.03)


def main() -> None:
    """Simulates and prints, or writes, the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4000, help="simulated trials a figure")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    page = _page(arguments.trials)
    print(page)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")


def _page(n: int) -> str:
    few = max(100, n // 4)
    return f"""# The statistics of a trial

*Made by `benchmarks/statistics/run.py` ({n:,} simulated trials a figure, fixed seeds).*

## The unit is the run

Steps resemble their neighbours, so a hundred of them are worth far fewer. PerfDoctor cuts the steady part of a run into
*blocks* (at least 20 steps, or 1 s) and takes their means. But two runs of one training differ by more than their
blocks tell: the layout of memory, the clock that the machine granted, what else was running. So the *level* of a run is
the median of its block means, and the noise is what the levels of runs of one arm differ by. All intervals are
made on the logarithms of levels, as ratios are what is asked for.

## The interval

The usual answer to unknown distributions is the bootstrap. It fails here: with two to five runs an arm it takes the
spread of so few values for the whole truth. Part of {few:,} trials whose 95 % interval held the true ratio, for an arm
against both halves of the A/A pair ({NOISES[0].name}):

{_methods(few)}

Welch's t-interval knows how little so few runs tell. Unlike Student's pooled interval it lets the two arms spread
differently, as a compiled and an eager training do. From six runs on, the machine's drift is taken out first, as a
straight line that both arms share, and one degree of freedom with it: rounds are mirrored (A B C, C B A), so a drift
moves no arm against another, but left in it would be taken for noise and widen every interval.

Coverage of the method in use, {BLOCKS} blocks a run. *Alone*: an arm against both halves of the A/A pair, R against 2R
runs. *Rung*: an arm against the rung below it, R against R.

{_coverages(n)}

Two against two is more careful than 95 %: four runs are too few to take a drift out, and Welch's
degrees of freedom, estimated from two variances of two values each, err on the careful side.

## The noise band

A change may be real and still be none that matters. The *noise band* is what two runs of the same training differ
by in 19 of 20 cases, from the 2R runs of the A/A pair, at least ±{MIN_BAND:.0%}. It
belongs to the machine and the training; more repeats make intervals narrower, not the band, so they settle at last what
lies in it. A change is claimed only beyond the band. On a machine noisier than ±{MAX_SAME:.0%}, only what lies within
±{MAX_SAME:.0%} is called no change.

| the interval of the speed-up | verdict |
|:--|:--|
| wholly above the band | `improved` |
| wholly below it | `regressed` |
| wholly inside it, and inside ±{MAX_SAME:.0%} | `no_change` |
| anything else | `inconclusive`, with the repeats that would probably settle it |

"Not significant" is not "the same": only an interval inside the band says so.

## The permutation test

Beside the interval stands an exact permutation test: of all ways to deal the runs to the two arms, how many separate
them as far. Runs are dealt, never blocks. So few runs cannot reach every level: the smallest two-sided p of m and n
runs is 2 / C(m+n, m).

{_permutations()}

Where p = {LEVEL} can be reached and is not, an interval beyond the band is `inconclusive` all the same; where it
cannot be reached, the p-value is shown and decides nothing.

## False alarms

An arm that changes nothing, by verdict, R = 3. `improved` and `regressed` are the false positives; an A/A trial may
have at most 5 % of them:

{_false_alarms(n)}

The real strategy stops an arm as soon as its verdict is clear, after two rounds at the earliest, and runs it up to
{Plan().extra} times more where that would probably settle it. Looking more than once costs certainty; measured with all
of it:

{_early(few)}

## Power

Part of arms called `improved`, by true speed-up, R and noise (blocks and runs differ by the same, as a standard
deviation); for 1.00× the part called `no_change`.

{_powers(few)}

Read: with runs that differ by about 1 %, three repeats find a gain of 10 % almost surely and one of 5 % now and
then. A gain within the noise band is not worth a claim, and hardly ever gets one. That a treatment changes nothing
takes about five repeats to show, or a quieter machine.

## Limits

- Noise that changes in the middle of a trial (another job starts) is neither a drift nor a spread. Rounds are
  interleaved so that it hits all arms; the intervals become wide and the verdicts `inconclusive`.
- The drift is a straight line in the order of runs. A wandering machine is covered by what it adds to the spread.
- Several arms are judged at 95 % each. The band keeps false alarms far below 5 % an arm, so no further correction
  is made.
- The first rung is the strongest of several measured gains, so its estimate leans high by a part of the noise. All
  rungs above it are measured anew beside the baseline.
"""


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = [":--", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def _methods(n: int) -> str:
    methods = {
        "percentile bootstrap over runs and blocks": percentile_bootstrap,
        "BCa bootstrap over runs": bca_bootstrap,
        "Welch's interval, drift left in": welch_with_drift_left_in,
    }
    rows = [
        [name, *(f"{coverage(NOISES[0], repeats, min(n, 1000), method=method):.1%}" for repeats in REPEATS)]
        for name, method in methods.items()
    ]
    drifting = next(noise for noise in NOISES if noise.drift and not noise.is_heavy)
    left_in = [coverage(drifting, repeats, n, method=welch_with_drift_left_in) for repeats in REPEATS]
    rows.append([f"the same, {drifting.name}", *(f"{figure:.1%}" for figure in left_in)])
    rows.append(["**in use**", *(f"{coverage(NOISES[0], repeats, n):.1%}" for repeats in REPEATS)])
    return _table(["method", *(f"R = {repeats}" for repeats in REPEATS)], rows)


def _coverages(n: int) -> str:
    head = ["noise", *(f"{kind}, R = {r}" for kind in ("alone", "rung") for r in REPEATS)]
    rows = []
    for noise in NOISES:
        figures = [coverage(noise, repeats, n, is_rung=is_rung) for is_rung in (False, True) for repeats in REPEATS]
        rows.append([noise.name, *(f"{figure:.1%}" for figure in figures)])
    return _table(head, rows)


def _permutations() -> str:
    pairs = [(2, 2), (4, 2), (3, 3), (6, 3), (4, 4), (5, 5), (6, 6), (10, 5)]
    rows = [[f"{m} + {n}", f"{smallest_p(m, n):.4f}", "yes" if smallest_p(m, n) <= LEVEL else "no"] for m, n in pairs]
    return _table(["runs", "smallest p", f"reaches {LEVEL}"], rows)


def _row(name: str, told: dict[str, float]) -> list[str]:
    false = told.get("improved", 0) + told.get("regressed", 0)
    return [name, f"{false:.2%}", f"{told.get('no_change', 0):.0%}", f"{told.get('inconclusive', 0):.0%}"]


def _false_alarms(n: int) -> str:
    rows = [[*_row(noise.name, calls(noise, 3, 1.0, n)), f"±{median_band(noise, 3, 300):.1%}"] for noise in NOISES]
    return _table(["noise", "false positives", "`no_change`", "`inconclusive`", "median band"], rows)


def _early(n: int) -> str:
    rows = []
    for noise in (NOISES[0], NOISES[3], NOISES[5]):
        told, made = stopped_early(noise, 1.0, max(100, n // 2))
        rows.append([*_row(noise.name, told), f"{made:.0%}"])
    return _table(["noise", "false positives", "`no_change`", "`inconclusive`", "runs made, of 3 rounds"], rows)


def _powers(n: int) -> str:
    rows = []
    for level in LEVELS:
        noise = Noise(f"{level:.1%}", between=level, within=level)
        for repeats in (3, 5):
            cells = []
            for speedup in SPEEDUPS:
                told = calls(noise, repeats, speedup, n)
                cells.append(f"{told.get('improved' if speedup > 1 else 'no_change', 0):.0%}")
            rows.append([noise.name, str(repeats), *cells])
    head = ["noise", "R", "1.00×", *(f"{speedup:.2f}×" for speedup in SPEEDUPS[1:])]
    return _table(head, rows)


if __name__ == "__main__":
    main()
