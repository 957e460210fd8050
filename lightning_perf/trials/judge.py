"""Judge the arms of a trial by their runs: speed against the baseline, losses and memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from statistics import median
from typing import NamedTuple

from lightning_perf.records import SAFETIES, Arm, ArmRun, ArmVerdict, Gain, Interval, LossVerdict, Safety
from lightning_perf.stats.estimates import MIN_BAND, MIN_RUNS, noise_band, ratio_interval, step_interval
from lightning_perf.stats.verdicts import ArmComparison, classify, compare

from .losses import loss_parity

SEARCH = -1
"""Stage of the runs that search for the fastest batch: points on a curve, not arms to judge."""

BASELINE = "baseline"
AGAIN = "baseline-again"

_CHANGES = ("improved", "regressed")
_SAME_SIZE = 1e-3  # smaller relative differences of samples per step come from a short last batch
_RESIZING = ("batch-size", "checkpointing-batch")


class Judgement(NamedTuple):
    """Results of the arms, in the order of their first runs; for ``noise_band`` and ``aa`` see ``Trial``."""

    arms: tuple[Arm, ...]
    noise_band: float
    aa: Interval | None

    def arm(self, id_: str) -> Arm | None:
        """Return the arm with this id; None if it never ran."""
        return next((arm for arm in self.arms if arm.id == id_), None)


def judge(runs: Sequence[ArmRun], predicted: Mapping[str, Gain] = {}, safety: Mapping[str, Safety] = {}) -> Judgement:
    """Judge every arm against the baseline runs of the same rounds.

    Args:
        runs: In the order made.
        predicted: Expected speedups by treatment as given, e.g. ``"loader-workers=4"``, for arms of one treatment.
        safety: Safeties by treatment as given; ``exact`` by default. An arm is as safe as its least safe treatment.
    """
    done = [run for run in runs if run.stage != SEARCH]
    band, aa = measured_pair(done)
    ids = list(dict.fromkeys(run.arm for run in done))
    arms = tuple(_arm(id_, done, band, predicted, safety) for id_ in ids)
    return Judgement(arms, band, aa)


def compare_arms(runs: Sequence[ArmRun], base: Sequence[str], new: str, band: float) -> ArmComparison:
    """Compare one arm with others, by runs of the same rounds; ``band`` is the relative change that counts as none.

    Several arms in ``base`` count as one: the two baselines, or the rung below.
    """
    usable_base, usable_new = _same_rounds(runs, base, new)
    if len(usable_base) < MIN_RUNS:  # too many failed: use runs of other rounds too
        usable_base = [run for run in runs if run.arm in base and run.status == "ok" and run.block_means_s]
    units = _units(usable_base, usable_new, new)
    if units is None:
        return ArmComparison(
            "inconclusive", None, None, None,
            "the batch size changes and batches have no known size, so their steps cannot be compared",
        )  # fmt: skip
    in_base, in_new = units
    return compare(
        [[mean / in_base for mean in run.block_means_s] for run in usable_base],
        [[mean / in_new for mean in run.block_means_s] for run in usable_new],
        band,
        [run.position for run in usable_base],
        [run.position for run in usable_new],
    )


def treatments_of(arm: str) -> tuple[str, ...]:
    """Return the treatments of an arm, read from its id; none for the two baselines."""
    return () if arm in (BASELINE, AGAIN) else tuple(arm.split("+"))


def _arm(id_: str, done: list[ArmRun], band: float, predicted: Mapping[str, Gain], safety: Mapping[str, Safety]) -> Arm:
    own = [run for run in done if run.arm == id_]
    treatments = treatments_of(id_)
    least_safe = SAFETIES[max((SAFETIES.index(_safety(t, safety)) for t in treatments), default=0)]
    verdict, reason, comparison = _verdict(id_, own, done, band)
    loss: LossVerdict = "unknown"
    if treatments and verdict != "failed":
        baseline = [run for run in done if run.arm in (BASELINE, AGAIN) and run.status == "ok"]
        loss = loss_parity([run for run in own if run.status == "ok"], baseline, least_safe)
    compile_s = _compile_s(done, id_)
    speedup = comparison.speedup if comparison else None
    base_s = step_interval([run.block_means_s for run in done if run.arm == BASELINE and run.block_means_s])
    saved_s = base_s.value * (1 - 1 / speedup.value) if base_s is not None and speedup is not None else 0.0
    return Arm(
        id=id_,
        treatments=treatments,
        safety=least_safe,
        verdict=verdict,
        reason=reason,
        speedup=speedup,
        p_value=comparison.p_value if comparison else None,
        step_s=None if verdict == "failed" else step_interval([run.block_means_s for run in own if run.block_means_s]),
        predicted=predicted.get(id_),
        peak_bytes=_peak(own),
        loss=loss,
        repeats_needed=comparison.repeats_needed if comparison and verdict == "inconclusive" else None,
        compile_s=compile_s,
        pays_after_steps=math.ceil(compile_s / saved_s) if compile_s and verdict == "improved" and saved_s else None,
    )


def _compile_s(done: Sequence[ArmRun], arm: str) -> float:
    """Return the seconds by which an arm's slowest run compiled longer than the baseline's.

    If the baseline compiles too, a difference smaller than its own time counts as noise.
    """
    ours, theirs = (max((run.compile_s for run in done if run.arm == one), default=0.0) for one in (arm, BASELINE))
    return ours - theirs if ours > 2 * theirs else 0.0


def _safety(treatment: str, safety: Mapping[str, Safety]) -> Safety:
    return safety.get(treatment, "semantics" if treatment.partition("=")[0] in _RESIZING else "exact")


def _verdict(
    id_: str, own: list[ArmRun], done: list[ArmRun], band: float
) -> tuple[ArmVerdict, str, ArmComparison | None]:
    failure = failure_of(id_, done)
    if failure:
        return "failed", failure, None
    if id_ == BASELINE:
        return "no_change", "", None
    base = (BASELINE,) if id_ == AGAIN else (BASELINE, AGAIN)
    if not any(run.arm in base and run.status == "ok" for run in done):
        return "inconclusive", "the baseline failed, so there is nothing to compare with", None
    ended_well = [run for run in own if run.status == "ok"]
    unsteady = [run for run in ended_well if not run.block_means_s]
    if ended_well and len(unsteady) == len(ended_well):
        return "inconclusive", unsteady[0].reason or f"no steady state in {unsteady[0].n_steps} steps", None
    comparison = compare_arms(done, base, id_, band)
    reasons = [comparison.reason] if comparison.reason else []
    if unsteady:
        reasons.append(f"{len(unsteady)} of {len(ended_well)} runs left out: they had no steady state")
    if id_ == AGAIN and comparison.speedup is not None and classify(comparison.speedup, MIN_BAND) in _CHANGES:
        reasons.append("the same training differs from itself, so this machine is too noisy")
    return comparison.verdict, "; ".join(reasons), comparison


def failure_of(id_: str, done: Sequence[ArmRun]) -> str:
    """Return why an arm failed; empty if it did not. A baseline only fails if all its runs fail."""
    own = [run for run in done if run.arm == id_]
    failed = [run for run in own if run.status == "failed"]
    if failed and (id_ not in (BASELINE, AGAIN) or len(failed) == len(own)):
        return failed[0].reason or "it failed without a message"
    return ""


def measured_pair(done: Sequence[ArmRun]) -> tuple[float, Interval | None]:
    """Return the noise band, and the ratio of the two halves of the A/A pair (None with too few runs)."""
    (base, base_at), (new, new_at) = (
        ([run.block_means_s for run in side], [run.position for run in side])
        for side in _same_rounds(done, (BASELINE,), AGAIN)
    )
    return noise_band([*base, *new], [*base_at, *new_at]), ratio_interval(base, new, base_at, new_at)


def _same_rounds(done: Sequence[ArmRun], base: Sequence[str], new: str) -> tuple[list[ArmRun], list[ArmRun]]:
    """Return measured runs of ``base`` and ``new`` from rounds with both: machines drift between rounds."""
    pairs = list(zip(done, rounds_of(done), strict=True))
    in_both = {at for run, at in pairs if run.arm in base} & {at for run, at in pairs if run.arm == new}
    usable = [run for run, at in pairs if at in in_both and run.status == "ok" and run.block_means_s]
    return [run for run in usable if run.arm in base], [run for run in usable if run.arm == new]


def rounds_of(done: Sequence[ArmRun]) -> list[tuple[int, int]]:
    """Return stage and round of each run: the round counts the arm's earlier runs in that stage."""
    counts: dict[tuple[str, int], Iterator[int]] = {}
    return [(run.stage, next(counts.setdefault((run.arm, run.stage), count()))) for run in done]


def _units(base: list[ArmRun], new: list[ArmRun], arm: str) -> tuple[float, float] | None:
    """Return the divisors of step times: samples or batches per step if the arms differ in them, else 1.

    None if the arm resizes batches whose size is unknown.
    """
    samples = [run.samples_per_step for run in (*base, *new)]
    if base and new and all(samples):
        in_base, in_new = (median(run.samples_per_step or 0 for run in group) for group in (base, new))
        return (1.0, 1.0) if abs(in_new / in_base - 1) < _SAME_SIZE else (in_base, in_new)
    if any(t.partition("=")[0] in _RESIZING for t in treatments_of(arm)):
        return None
    if base and new:
        return median(run.batches_per_step for run in base), median(run.batches_per_step for run in new)
    return 1.0, 1.0


def _peak(own: list[ArmRun]) -> int | None:
    for peaks in ([run.peak_device_bytes for run in own], [run.peak_host_bytes for run in own]):
        known = [peak for peak in peaks if peak is not None]
        if known:
            return int(median(known))
    return None
