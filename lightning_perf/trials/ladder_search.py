"""Build the ladder: choose the next treatment, and decide whether it is kept or left out, with the reason."""

from collections.abc import Sequence

from lightning_perf.records import ArmRun, ArmVerdict, Interval, Rung
from lightning_perf.stats.estimates import step_interval
from lightning_perf.stats.verdicts import ArmComparison, classify

from .fastest_batch import TREATMENT, knee, next_size, points_of, resized
from .judge import BASELINE, SEARCH, Judgement, compare_arms, failure_of
from .rounds import Candidate, Plan, Round, arm_id, open_round

RETRY_SPEEDUP = 1.1
"""Speedup of the kept rungs that may have moved the bottleneck: treatments without a gain alone are then tried too."""


class LadderSearch:
    """A ladder that is built rung by rung."""

    def __init__(self, plan: Plan, done: Sequence[ArmRun], judgement: Judgement, alone: Judgement) -> None:
        self._plan = plan
        self._done = done
        self._judgement = judgement
        self._alone = {arm.id: arm for arm in alone.arms}
        self._stage = 0
        self._kept_speedup = 1.0
        self.kept: list[Candidate] = []
        self.rungs: list[Rung] = []
        baseline = self._alone.get(BASELINE)
        if baseline is not None:
            self.rungs.append(
                Rung(added="", arm=BASELINE, is_kept=True, verdict=baseline.verdict, peak_bytes=baseline.peak_bytes)
            )

    def queue(self) -> list[Candidate]:
        """Return the candidates in the order to try: strongest gain alone first, excluded ones last."""
        candidates = [c for c in self._plan.candidates if c.treatment in self._alone and not c.is_measurement]

        def rank(candidate: Candidate) -> tuple[int, float]:
            arm = self._alone[candidate.treatment]
            if self._why_unfit(candidate):
                return 2, 0.0
            if arm.verdict == "improved" and arm.speedup is not None:
                return 0, -self._with_compile_time(arm.speedup, arm.id, self._alone[BASELINE].step_s).value
            return 1, -candidate.predicted.high if candidate.predicted is not None else 0.0

        return sorted(candidates, key=rank)

    def reason_to_skip(self, candidate: Candidate) -> str:
        """Return why a treatment is not measured on top of the kept ones; empty if it is."""
        unfit = self._why_unfit(candidate)
        if unfit:
            return unfit
        for other in self.kept:
            if _conflict(candidate, other):
                return f"cannot be combined with {other.treatment}"
        has_gained = self._alone[candidate.treatment].verdict == "improved"
        if not has_gained and self._kept_speedup < RETRY_SPEEDUP:
            return self._alone[candidate.treatment].reason or "no speedup alone"
        return "measured alone only" if self.kept and not self._plan.has_ladder else ""

    def leave_out(self, candidate: Candidate, reason: str) -> None:
        """Add a rung that is not kept, for a treatment that was only measured alone."""
        arm = self._alone[candidate.treatment]
        verdict = "failed" if failure_of(arm.id, self._done) else arm.verdict
        self.rungs.append(self._rung(candidate, arm.id, verdict, False, None, reason))

    def keep_first(self, candidate: Candidate) -> None:
        """Keep the strongest treatment: measured alone, it was measured on top of the baseline."""
        arm = self._alone[candidate.treatment]
        self.kept.append(candidate)
        self._kept_speedup = arm.speedup.value if arm.speedup is not None else 1.0
        whole = self._judgement.arm(arm.id) or arm  # judged by its runs of all stages
        self.rungs.append(self._rung(candidate, arm.id, arm.verdict, True, whole.speedup, ""))

    def measure(self, candidate: Candidate) -> Round | None:
        """Measure a rung on top of the kept ones; return its open round, or None once it is decided."""
        self._stage += 1
        below = arm_id([c.treatment for c in self.kept])
        id_ = arm_id([*(c.treatment for c in self.kept), candidate.treatment])
        band = self._judgement.noise_band
        references = list(dict.fromkeys([BASELINE, below]))
        found = open_round(self._done, self._stage, references, [id_], self._plan, [below], band)
        if found is not None:
            return found
        own = [run for run in self._done if run.stage == self._stage]
        self._decide(candidate, id_, below, own, band)
        return None

    def fastest_batch(self) -> Round | None:
        """Search for the fastest batch, one run per size, then measure it as a rung; None once that is done."""
        if not self._plan.finds_batch or any(_conflict(Candidate(treatment=TREATMENT), one) for one in self.kept):
            return None
        below = arm_id([candidate.treatment for candidate in self.kept])
        # Runs of the search, and earlier ones of the rung below: later ones must not move the knee.
        began = min((run.position for run in self._done if run.stage == SEARCH), default=len(self._done))
        points = points_of([run for run in self._done if run.stage == SEARCH or run.position < began], below)
        size = next_size(points, self._plan.capacity_bytes)
        if size is not None:
            arm = resized(below, size)
            return Round(SEARCH, 0, [arm], [arm])
        size = knee(points)
        if size is None or size == 1:
            return None
        return self.measure(Candidate(treatment=f"{TREATMENT}=x{size}", safety="semantics"))

    def _decide(self, candidate: Candidate, id_: str, below: str, own: list[ArmRun], band: float) -> None:
        arm = self._judgement.arm(id_)
        step = compare_arms(own, [below], id_, band)
        if arm is None or arm.verdict == "failed":
            reason = arm.reason if arm is not None else "it never ran"
            self.rungs.append(self._rung(candidate, id_, "failed", False, None, reason))
            return
        reason = "" if step.verdict == "improved" else _why_not(step)
        if not reason:
            step_s = step_interval([run.block_means_s for run in own if run.arm == below and run.block_means_s])
            reason = self._why_unpaid(step.speedup, candidate.treatment, step_s)
        if arm.loss == "diverged":
            reason = "its losses differ from the baseline's"
        if not reason:
            self.kept.append(candidate)
            total = compare_arms(own, [BASELINE], id_, band).speedup
            self._kept_speedup = total.value if total is not None else self._kept_speedup
        self.rungs.append(self._rung(candidate, id_, step.verdict, not reason, step.speedup, reason))

    def _why_unfit(self, candidate: Candidate) -> str:
        """Return why the result of the treatment alone excludes it from the ladder; empty if it does not."""
        arm = self._alone[candidate.treatment]
        failure = failure_of(arm.id, self._done)  # also in a later stage, in which the treatment was kept
        if failure:
            return failure
        if arm.verdict == "regressed":
            return "slower when applied alone"
        if candidate.safety not in self._plan.allow:
            return "changes the training itself, so it was measured alone only"
        is_improved = arm.verdict == "improved"
        if is_improved and (reason := self._why_unpaid(arm.speedup, arm.id, self._alone[BASELINE].step_s)):
            return reason
        return "its losses differ from the baseline's" if arm.loss == "diverged" else ""

    def _with_compile_time(self, speedup: Interval, treatment: str, step_s: Interval | None) -> Interval:
        """Return the speedup over all planned steps of ``step_s`` each, with the time to compile the treatment."""
        arm, n_steps = self._alone.get(treatment), self._plan.planned_steps
        if arm is None or not arm.compile_s or n_steps is None or step_s is None:
            return speedup
        before_s = n_steps * step_s.value
        low, value, high = (
            before_s / (before_s / one + arm.compile_s) for one in (speedup.low, speedup.value, speedup.high)
        )
        return Interval(value=value, low=low, high=high)

    def _why_unpaid(self, speedup: Interval | None, treatment: str, step_s: Interval | None) -> str:
        """Return why compiling does not pay within the planned steps; empty if it does or nothing was compiled."""
        if speedup is None or (whole := self._with_compile_time(speedup, treatment, step_s)) == speedup:
            return ""
        if classify(whole, self._judgement.noise_band) == "improved":
            return ""
        return (
            f"compiling takes {self._alone[treatment].compile_s:.1f} s: {whole.value:.2f}x over the "
            f"{self._plan.planned_steps:,} planned steps, {speedup.value:.2f}x per step"
        )

    def _rung(
        self, candidate: Candidate, id_: str, verdict: ArmVerdict, is_kept: bool, gain: Interval | None, reason: str
    ) -> Rung:
        arm = self._judgement.arm(id_)
        return Rung(
            added=candidate.treatment,
            arm=id_,
            is_kept=is_kept,
            verdict=verdict,
            step_gain=gain,
            speedup=arm.speedup if arm is not None else None,
            predicted=candidate.predicted,
            peak_bytes=arm.peak_bytes if arm is not None else None,
            loss=arm.loss if arm is not None else "unknown",
            reason=reason,
        )


def _conflict(a: Candidate, b: Candidate) -> bool:
    name_a, name_b = a.treatment.partition("=")[0], b.treatment.partition("=")[0]
    return name_a == name_b or name_a in b.conflicts or name_b in a.conflicts


def _why_not(step: ArmComparison) -> str:
    if step.verdict == "inconclusive":
        why = f": {step.reason}" if step.reason else ""
        return f"no speedup shown on top of the kept treatments{why}"
    return (
        "slower on top of the kept treatments"
        if step.verdict == "regressed"
        else "no speedup on top of the kept treatments"
    )
