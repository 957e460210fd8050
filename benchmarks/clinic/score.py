"""What the runs of a case say about the doctor, and what all of them say together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from case import Case
from scipy.stats import binomtest
from surgery import Ended

from lightning_perf.records import Finding
from lightning_perf.trials.job import Result

ALARMS = ("medium", "high")
"""A healthy training that is told of less is told of something small, not accused."""


class Outcome(NamedTuple):
    """One diagnosed run of a case.

    Attributes:
        case: The case.
        said: Findings above ``info`` that are not about the measurement, first first.
        rank: Place of the first that names the true cause, from 1; None where none does. Healthy: None.
        second_rank: Place of the smaller of two faults.
        predicted: The gain predicted by the finding that names the cause.
        measured: Old ÷ new time of a step, medians of blocks; None where the case has no fix or was not timed.
        error: Why there is no diagnosis.
    """

    case: Case
    said: tuple[Finding, ...] = ()
    rank: int | None = None
    second_rank: int | None = None
    predicted: tuple[float, float] | None = None
    measured: float | None = None
    error: str = ""

    @property
    def is_covered(self) -> bool | None:
        """Whether the measured gain lies in the interval predicted; None where one of them is missing."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted[0] <= self.measured <= self.predicted[1]

    @property
    def alarms(self) -> tuple[str, ...]:
        """Codes of what a healthy training is accused of."""
        return tuple(f.code for f in self.said if f.severity in ALARMS) if self.case.kind == "healthy" else ()


class Share(NamedTuple):
    """So many of so many, with Wilson's 95 % interval."""

    n: int
    of: int

    def __str__(self) -> str:
        if not self.of:
            return "–"
        low, high = binomtest(self.n, self.of).proportion_ci(0.95, method="wilson")
        return f"{self.n} of {self.of} = {self.n / self.of:.0%} ({low:.0%} to {high:.0%})".replace("%", " %")


class Score(NamedTuple):
    """Of some cases.

    Attributes:
        first: Faulty cases whose true cause was named first.
        among_three: The same among the first three.
        accused: Healthy runs with a finding of medium or high severity.
        covered: Measured gains within the interval predicted.
        second: Cases with two faults where the smaller was named among the first three too.
    """

    first: Share
    among_three: Share
    accused: Share
    covered: Share
    second: Share


def outcome_of(case: Case, ended: Ended, timed: Sequence[Ended]) -> Outcome:
    """What one diagnosed run said, beside the measured gain of its case."""
    if ended.session is None:
        return Outcome(case, error=ended.error)
    said = tuple(f for f in ended.session.findings if f.severity != "info" and f.category != "quality")
    rank = _rank(said, case.expect)
    naming = said[rank - 1] if rank is not None else None
    gain = naming.gain if naming is not None else None
    return Outcome(
        case,
        said=said,
        rank=rank,
        second_rank=_rank(said, (case.second,)) if case.second else None,
        predicted=(gain.low, gain.high) if gain is not None else None,
        measured=measured_gain(timed),
    )


def measured_gain(timed: Sequence[Ended]) -> float | None:
    """Time of a step as it was ÷ mended: with whole epochs where both have them, else of usual steps."""
    results = {
        is_mended: [end.result for end in timed if end.order.is_mended is is_mended and end.result is not None]
        for is_mended in (False, True)
    }
    for blocks in (_epoch_blocks, _step_blocks):
        old, new = ([value for result in results[key] for value in blocks(result)] for key in (False, True))
        if old and new:
            return median(old) / median(new)
    return None


def score(outcomes: Iterable[Outcome]) -> Score:
    """All of them together; a case without a diagnosis was not named."""
    outcomes = list(outcomes)
    faulty = [one for one in outcomes if one.case.kind != "healthy"]
    healthy = [one for one in outcomes if one.case.kind == "healthy"]
    double = [one for one in faulty if one.case.second]
    covered = [one.is_covered for one in faulty if one.is_covered is not None]
    return Score(
        first=Share(sum(one.rank == 1 for one in faulty), len(faulty)),
        among_three=Share(sum(_is_among_three(one.rank) for one in faulty), len(faulty)),
        accused=Share(sum(bool(one.alarms) or bool(one.error) for one in healthy), len(healthy)),
        covered=Share(sum(covered), len(covered)),
        second=Share(sum(_is_among_three(one.second_rank) for one in double), len(double)),
    )


def _rank(said: Sequence[Finding], codes: Sequence[str]) -> int | None:
    return next((place for place, finding in enumerate(said, 1) if finding.code in codes), None)


def _is_among_three(rank: int | None) -> bool:
    return rank is not None and rank <= 3


def _epoch_blocks(result: Result) -> tuple[float, ...]:
    return result.wall_block_means_s


def _step_blocks(result: Result) -> tuple[float, ...]:
    return result.block_means_s
