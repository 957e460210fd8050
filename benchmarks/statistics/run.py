"""Measure how often the statistics of a trial are right on simulated machines; write docs/explanation/statistics.md.

Run: ``python benchmarks/statistics/run.py [--trials N] [--write]`` (about five minutes with 4,000 trials per figure).
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

from lightning_perf.stats.estimates import MIN_BAND
from lightning_perf.stats.verdicts import LEVEL, MAX_SAME, smallest_p
from lightning_perf.trials.rounds import Plan

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "statistics.md"
REPEATS = (2, 3, 5)
SPEEDUPS = (1.0, 1.03, 1.05, 1.1, 1.2, 1.5)
LEVELS = (0.003, 0.01, 0.03)


def main() -> None:
    """Simulate; print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4000, help="simulated trials per figure")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    page = _page(arguments.trials)
    print(page)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")


def _page(n: int) -> str:
    few = max(100, n // 4)
    return f"""# The statistics of a trial

*Written by `benchmarks/statistics/run.py` ({n:,} simulated trials per figure, fixed seeds).*

## The unit is a run

Consecutive steps are correlated, so a hundred of them carry far less information than a hundred independent values.
PerfDoctor divides the steady part of a run into *blocks* (at least 20 steps, or 1 s) and takes their means. Two runs
of the same training differ by more than their blocks show: memory layout, CPU clock, other programs. So the *level*
of a run is the median of its block means, and the noise is the spread of levels between runs of one arm. All
intervals are computed on the logarithms of levels, because speedups are ratios.

## The interval

A bootstrap, the usual choice for unknown distributions, fails here: with two to five runs per arm, the spread of so
few values is too small. Share of {few:,} trials whose 95 % interval contained the true ratio, for an arm against both
halves of the A/A pair ({NOISES[0].name}):

{_methods(few)}

Welch's t-interval accounts for the small number of runs. Unlike Student's pooled interval, it allows different
spreads in the two arms, as in a compiled and an eager training. From six runs on, the machine's drift is removed
first, as a straight line common to both arms, at the cost of one degree of freedom. Rounds are mirrored (A B C, C B
A), so a drift does not shift one arm against another, but if left in it would count as noise and widen every
interval.

Coverage of the method in use, with {BLOCKS} blocks per run. *Alone*: an arm against both halves of the A/A pair, R
against 2R runs. *Rung*: an arm against the rung below it, R against R.

{_coverages(n)}

Two against two runs cover more than 95 %: four runs are too few to remove a drift, and Welch's degrees of freedom,
estimated from two variances of two values each, are conservative.

## The noise band

A real change may be too small to matter. The *noise band* is the difference that two runs of the same training stay
within in 19 of 20 cases, estimated from the 2R runs of the A/A pair and at least ±{MIN_BAND:.0%}. It depends on the
machine and the training. More repeats narrow the intervals, not the band, so they eventually decide whether a change
lies inside it. Only a change beyond the band is reported. On a machine noisier than ±{MAX_SAME:.0%}, only what lies
within ±{MAX_SAME:.0%} is reported as no change.

| the interval of the speedup | verdict |
|:--|:--|
| entirely above the band | `improved` |
| entirely below it | `regressed` |
| entirely inside it, and inside ±{MAX_SAME:.0%} | `no_change` |
| anything else | `inconclusive`, with the number of repeats that would probably decide it |

"Not significant" does not mean "the same": only an interval inside the band does.

## The permutation test

The interval is accompanied by an exact permutation test: the share of all assignments of runs to the two arms that
separate them at least as far. Runs are permuted, never blocks. With few runs not every level can be reached: the
smallest two-sided p of m and n runs is 2 / C(m+n, m).

{_permutations()}

If p = {LEVEL} can be reached but is not, an interval beyond the band is still `inconclusive`. If it cannot be reached,
the p-value is shown but does not affect the verdict.

## False positives

Verdicts for an arm that changes nothing, R = 3. `improved` and `regressed` are false positives; an A/A trial may have
at most 5 % of them:

{_false_alarms(n)}

A real trial stops an arm as soon as its verdict is clear, after two rounds at the earliest, and repeats it up to
{Plan().extra} more times if that would probably decide it. Checking more than once increases the error rate; measured
with all of this:

{_early(few)}

## Power

Share of arms reported as `improved`, by true speedup, R and noise (standard deviation of both blocks and runs); for
1.00x the share reported as `no_change`.

{_powers(few)}

If runs differ by about 1 %, three repeats find a speedup of 10 % almost always and one of 5 % in about four of ten
trials. A speedup within the noise band is rarely reported. Showing that a treatment changes nothing takes about five
repeats, or a quieter machine.

## Limits

- Noise that changes during a trial (another job starts) is neither a drift nor a spread. Rounds are interleaved so
  that it affects all arms; intervals become wide and verdicts `inconclusive`.
- The drift is a straight line in the order of runs. Any other drift adds to the spread.
- Several arms are each judged at 95 %. The band keeps false positives far below 5 % per arm, so there is no further
  correction.
- The first rung is the largest of several measured speedups, so its estimate is biased upward by part of the noise.
  All rungs above it are measured again next to the baseline.

## The autopilot

[The autopilot](../how-to/autopilot.md) compares blocks of one run, not runs, so it uses another interval. Blocks of
steps are taken four at a time, A B B A or B A A B by chance: the mean of both pairs has no linear drift, and noise
that neighboring blocks share has a random sign from one four to the next. Blocks of epochs are taken two at a time.
Each gives the logarithm of a speedup, and the decision may come after any of them.

A t-interval that is computed repeatedly would miss the true value far more often than one time in 20. The interval
used instead inverts the mixture martingale of the t-test (Lai 1976; [Wang and Ramdas
2023](https://arxiv.org/abs/2310.03722)): with n values of mean m and standard deviation s, r = 1 + 10 n and c = (20
√r)^(2/n), it is

    m ± s √((c - 1) / (1 - c/r) · (n - 1) / n)

and by Ville's inequality it contains the true value at all n together with a probability of at least 95 %, for
independent normal values. It is 7.6 s wide to each side after three values, 2.0 s after six and 0.8 s after 24.
[Simulations](../benchmarks/autopilot.md) show that correlated and drifting steps keep the error below 2 %.
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


def _row(name: str, counts: dict[str, float]) -> list[str]:
    false = counts.get("improved", 0) + counts.get("regressed", 0)
    return [name, f"{false:.2%}", f"{counts.get('no_change', 0):.0%}", f"{counts.get('inconclusive', 0):.0%}"]


def _false_alarms(n: int) -> str:
    rows = [[*_row(noise.name, calls(noise, 3, 1.0, n)), f"±{median_band(noise, 3, 300):.1%}"] for noise in NOISES]
    return _table(["noise", "false positives", "`no_change`", "`inconclusive`", "median band"], rows)


def _early(n: int) -> str:
    rows = []
    for noise in (NOISES[0], NOISES[3], NOISES[5]):
        counts, made = stopped_early(noise, 1.0, max(100, n // 2))
        rows.append([*_row(noise.name, counts), f"{made:.0%}"])
    return _table(["noise", "false positives", "`no_change`", "`inconclusive`", "runs made, of 3 rounds"], rows)


def _powers(n: int) -> str:
    rows = []
    for level in LEVELS:
        noise = Noise(f"{level:.1%}", between=level, within=level)
        for repeats in (3, 5):
            cells = []
            for speedup in SPEEDUPS:
                counts = calls(noise, repeats, speedup, n)
                cells.append(f"{counts.get('improved' if speedup > 1 else 'no_change', 0):.0%}")
            rows.append([noise.name, str(repeats), *cells])
    head = ["noise", "R", "1.00x", *(f"{speedup:.2f}x" for speedup in SPEEDUPS[1:])]
    return _table(head, rows)


if __name__ == "__main__":
    main()
