"""Scores diagnosed runs: causes named, healthy trainings accused, promises kept and broken.

Works on plain records that are saved as JSON, so that a score can be computed again without running a case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from case import Case
from scipy.stats import binomtest

from lightning_perf.records import Finding

if TYPE_CHECKING:
    from runs import Ended

    from lightning_perf.trials.job import Result

ALARMS = ("medium", "high")
"""Severities that accuse a healthy training. Findings below are hints."""

LEAST_SPEEDUP = 1.02
"""A fix that gains less gains nothing: 2 % is what a few hundred steps can tell from noise."""

LEAST_FAULT = 1.1
"""A case that ``needs`` something of the CPU is a fault only where its fix gains as much."""

NEAR = 0.02
"""Measured this close below a promise's lower end, repeated measurements may fall on either side of it."""


class Said(msgspec.Struct, frozen=True):
    """A finding above ``info`` that is not about the measurement itself.

    Attributes:
        code: Code of its rule.
        severity: Its severity.
        confidence: Its confidence.
        low: Lower end of the speedup it promises; None where it promises none.
        high: Upper end.
        method: How the promise came about; empty where there is none.
        names_line: Whether its text names a line that the case marks.
    """

    code: str
    severity: str
    confidence: str
    low: float | None = None
    high: float | None = None
    method: str = ""
    names_line: bool = False


class Applied(msgspec.Struct, frozen=True):
    """The measured effect of the fix that a finding of a healthy training recommends.

    Attributes:
        code: The finding's code.
        treatments: Its fix, as ``--apply`` takes it.
        measured: Time per step before ÷ after; None where it could not be measured.
    """

    code: str
    treatments: tuple[str, ...]
    measured: float | None


class Promise(NamedTuple):
    """A promised speedup that was measured.

    Attributes:
        low: Lower end of the interval.
        high: Upper end.
        measured: Measured speedup.
    """

    low: float
    high: float
    measured: float

    @property
    def is_kept(self) -> bool:
        """Whether the measured speedup lies in the interval."""
        return self.low <= self.measured <= self.high

    @property
    def is_broken(self) -> bool:
        """Whether the fix gains less than promised, or makes the training slower."""
        return self.measured < max(1.0, self.low)

    @property
    def is_nearly_kept(self) -> bool:
        """Whether a broken promise is within the noise of one measurement."""
        return self.is_broken and self.measured >= (1 - NEAR) * max(1.0, self.low)


class Outcome(msgspec.Struct, frozen=True):
    """One diagnosed run of a case.

    Attributes:
        case: Name of the case.
        kind: ``fault``, ``double`` or ``healthy``. A fault that costs nothing on this CPU counts as healthy.
        half: ``tune`` or ``score``.
        what: Its description.
        expect: Codes that name the true cause.
        second: Code of the smaller of two faults; empty where there is one at most.
        also: Codes that are right answers, too, where their gain is certain.
        has_line: Whether the case marks a line to name.
        said: Findings in PerfDoctor's order.
        measured: Time per step with the fault ÷ without it; None where this was not timed.
        applied: Measured fixes of findings: accusations of healthy cases, those in ``also``, and other cures of the
            true cause than the case's own.
        error: Why there is no diagnosis; empty otherwise.
    """

    case: str
    kind: str
    half: str
    what: str = ""
    expect: tuple[str, ...] = ()
    second: str = ""
    also: tuple[str, ...] = ()
    has_line: bool = False
    said: tuple[Said, ...] = ()
    measured: float | None = None
    applied: tuple[Applied, ...] = ()
    error: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.kind == "healthy"

    @property
    def rank(self) -> int | None:
        """Place of the first finding that names the true cause, from 1; None where none does."""
        places = () if self.is_healthy else enumerate(self.said, 1)
        return next((place for place, said in places if said.code in self.expect or self._is_right(said)), None)

    @property
    def naming(self) -> Said | None:
        """The first finding that names the true cause."""
        return None if self.rank is None else self.said[self.rank - 1]

    @property
    def stand_in(self) -> Said | None:
        """The finding that was right although its code is not the expected one."""
        return self.naming if self.naming is not None and self.naming.code not in self.expect else None

    @property
    def second_rank(self) -> int | None:
        """The same for the smaller of two faults."""
        return self._place((self.second,)) if self.second else None

    @property
    def predicted(self) -> tuple[float, float] | None:
        """The speedup that the finding of the true cause promises."""
        naming = self.naming
        return None if naming is None or naming.low is None or naming.high is None else (naming.low, naming.high)

    @property
    def promises(self) -> tuple[Promise, ...]:
        """Promises whose fix was measured: of the true cause, or of what a healthy training was accused of."""
        applied = {one.code: one.measured for one in self.applied}
        if not self.is_healthy:
            own = self.measured if self.stand_in is None else None
            measured = applied.get(self.naming.code, own) if self.naming is not None else None
            known = self.predicted is not None and measured is not None
            return (Promise(*self.predicted, measured),) if known else ()
        return tuple(
            Promise(said.low, said.high, measured)
            for said in self.accusations
            if said.low is not None and said.high is not None and (measured := applied.get(said.code)) is not None
        )

    @property
    def is_line_named(self) -> bool | None:
        """Whether the first finding names a marked line; None where no line is marked."""
        if not self.has_line or self.is_healthy:
            return None
        return bool(self.said) and self.said[0].names_line

    @property
    def accusations(self) -> tuple[Said, ...]:
        """Findings of medium or high severity about a healthy training."""
        return tuple(said for said in self.said if said.severity in ALARMS) if self.is_healthy else ()

    @property
    def alarms(self) -> tuple[str, ...]:
        """Codes of false accusations: those whose fix was not shown to gain what it promises at least."""
        return tuple(said.code for said in self.accusations if not self._is_upheld(said))

    def _is_upheld(self, said: Said) -> bool:
        least = max(LEAST_SPEEDUP, said.low or 1.0)
        return any(one.code == said.code and (one.measured or 0.0) >= least for one in self.applied)

    def _is_right(self, said: Said) -> bool:
        """Whether a finding of another code than expected is as good an answer."""
        if said.code not in self.also or said.severity not in ALARMS:
            return False
        if said.names_line and said.code != self.second:
            return True
        needs_line = self.has_line and said.code != self.second
        return not needs_line and _is_among_three(self._place(self.expect))

    def _place(self, codes: Sequence[str]) -> int | None:
        return next((place for place, said in enumerate(self.said, 1) if said.code in codes), None)


class Share(NamedTuple):
    """A count of a total, with Wilson's 95 % interval."""

    n: int
    of: int

    def __str__(self) -> str:
        if not self.of:
            return "–"
        low, high = binomtest(self.n, self.of).proportion_ci(0.95, method="wilson")
        return f"{self.n} of {self.of} = {self.n / self.of:.0%} ({low:.0%} to {high:.0%})".replace("%", " %")


class Score(NamedTuple):
    """The score of several runs.

    Attributes:
        first: Faulty cases whose true cause is the first finding.
        among_three: Those whose true cause is among the first three.
        line: Cases with a marked line whose first finding names it.
        second: Cases with two faults whose smaller fault is among the first three findings.
        accused: Healthy runs with a finding of medium or high severity whose fix does not gain what it promises.
        upheld: Healthy runs whose findings of medium or high severity all gain what they promise.
        kept: Promises with the measured speedup in the interval.
        broken: Promises with the measured speedup below the lower end, or below 1.0.
        nearly: Of the broken ones, those missed by less than 2 %.
        slower: Of the broken ones, those whose fix made the training slower.
        width: Median of upper ÷ lower end of promised intervals; None without any.
    """

    first: Share
    among_three: Share
    line: Share
    second: Share
    accused: Share
    upheld: int
    kept: Share
    broken: Share
    nearly: int
    slower: int
    width: float | None


def outcome_of(case: Case, ended: Ended, timed: Sequence[Ended], fixes: Sequence[Ended] = ()) -> Outcome:
    """Return what one diagnosed run says, with the measured speedups of its case.

    Args:
        case: The case.
        ended: Its diagnosed run.
        timed: Its timed runs, with the fault and without it.
        fixes: Its timed runs with the fixes that findings recommend, and without them.
    """
    measured = measured_gain(timed)
    is_no_fault = bool(case.needs) and measured is not None and measured < LEAST_FAULT
    findings = ended.session.findings if ended.session is not None else ()
    return Outcome(
        case=case.name,
        kind="healthy" if is_no_fault else case.kind,
        half=case.half,
        what=case.what,
        expect=case.expect,
        second=case.second,
        also=case.also,
        has_line=bool(case.costly_lines),
        said=tuple(_said(f, case) for f in findings if f.severity != "info" and f.category != "quality"),
        measured=measured,
        applied=_applied(fixes),
        error=ended.error if ended.session is None else "",
    )


def measured_gain(timed: Sequence[Ended]) -> float | None:
    """Return the time per step before ÷ after: over whole epochs where both have them, else over usual steps.

    None without either, and where a fix acts between steps and whole epochs are missing.
    """
    results = {
        is_fixed: [end.result for end in timed if end.order.is_fixed is is_fixed and end.result is not None]
        for is_fixed in (False, True)
    }
    needs_epochs = any(end.order.acts_between_steps for end in timed)
    # Some epochs may save a checkpoint, and others not: their median would be the time of one kind.
    for blocks, typical in ((_epoch_blocks, fmean), (_step_blocks, median))[: 1 if needs_epochs else 2]:
        old, new = ([value for result in results[key] for value in blocks(result)] for key in (False, True))
        if old and new:
            return typical(old) / typical(new)
    return None


def score(outcomes: Iterable[Outcome]) -> Score:
    """Return the score of all runs together; a case without a diagnosis was not named."""
    outcomes = list(outcomes)
    faulty = [one for one in outcomes if not one.is_healthy]
    healthy = [one for one in outcomes if one.is_healthy]
    double = [one for one in faulty if one.second]
    lines = [one.is_line_named for one in faulty if one.is_line_named is not None]
    promises = [promise for one in outcomes for promise in one.promises]
    broken = [promise for promise in promises if promise.is_broken]
    predicted = [one.predicted for one in faulty if one.predicted is not None]
    return Score(
        first=Share(sum(one.rank == 1 for one in faulty), len(faulty)),
        among_three=Share(sum(_is_among_three(one.rank) for one in faulty), len(faulty)),
        line=Share(sum(lines), len(lines)),
        second=Share(sum(_is_among_three(one.second_rank) for one in double), len(double)),
        accused=Share(sum(bool(one.alarms) or bool(one.error) for one in healthy), len(healthy)),
        upheld=sum(bool(one.accusations) and not one.alarms for one in healthy),
        kept=Share(sum(promise.is_kept for promise in promises), len(promises)),
        broken=Share(len(broken), len(promises)),
        nearly=sum(promise.is_nearly_kept for promise in broken),
        slower=sum(promise.measured < 1.0 for promise in broken),
        width=median(high / low for low, high in predicted) if predicted else None,
    )


def _said(finding: Finding, case: Case) -> Said:
    gain = finding.gain
    return Said(
        code=finding.code,
        severity=finding.severity,
        confidence=finding.confidence,
        low=gain.low if gain is not None else None,
        high=gain.high if gain is not None else None,
        method=gain.method if gain is not None else "",
        names_line=_names_line(finding, case),
    )


def _names_line(finding: Finding, case: Case) -> bool:
    """Whether the summary or the evidence names a marked line as ``file:line``."""
    text = " ".join([finding.summary, *(f"{fact.metric} {fact.value}" for fact in finding.evidence)])
    named = set(re.findall(rf"\b{re.escape(case.script.name)}:(\d+)", text))
    return any(str(each.line) in named for each in case.costly_lines)


def _applied(fixes: Sequence[Ended]) -> tuple[Applied, ...]:
    by_fix: dict[tuple[str, tuple[str, ...]], list[Ended]] = {}
    for end in fixes:
        by_fix.setdefault((end.order.code, end.order.treatments), []).append(end)
    return tuple(Applied(code, treatments, measured_gain(ends)) for (code, treatments), ends in by_fix.items())


def _is_among_three(rank: int | None) -> bool:
    return rank is not None and rank <= 3


def _epoch_blocks(result: Result) -> tuple[float, ...]:
    return result.wall_block_means_s


def _step_blocks(result: Result) -> tuple[float, ...]:
    return result.block_means_s
