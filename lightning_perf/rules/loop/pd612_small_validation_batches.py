"""PD612: validation runs in smaller batches than training."""

import math
from typing import NamedTuple

from lightning_perf.records import STEP_PHASES, Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import is_cpu_run, mean_phase_s, phase_s, steady_of
from lightning_perf.rules.thresholds import HOOK_MIN_SHARE
from lightning_perf.rules.wording import percent


class _Batches(NamedTuple):
    """Batch sizes of validation, now and as in training, and the seconds of the steady span that this saves."""

    now: int
    size: int
    least_s: float
    most_s: float


@rule("PD612", "small-validation-batches", explains=("PD601", "PD111"), line_of=())
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    if session.run.stage != "fit":
        raise Skip(f"only fit has a validation loop, this is {session.run.stage}")
    batches = _batches(session)
    if batches is None or batches.least_s < HOOK_MIN_SHARE * steady.span_s:
        return None
    share = phase_s(steady, "validation") / steady.span_s
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is validation, in batches of {batches.now}; a training step computes "
            f"{batches.size} samples at once."
        ),
        evidence=(
            fact("validation, share of the time", share, "fraction", HOOK_MIN_SHARE),
            fact("batch size of validation", batches.now, "count"),
            fact("batch size of training", batches.size, "count"),
        ),
        prescriptions=fix(
            f"validate with batch_size={batches.size}",
            "one line",
            "numerics",  # a mean over batches weights a smaller last batch differently
            code=f"DataLoader(..., batch_size={batches.size})  # for validation",
        ),
        claims={"validation": batches.most_s},
        low_s=batches.least_s,
        basis="time of its batches, without the forward passes of training steps over as many samples",
    )


def _batches(session: Session) -> _Batches | None:
    """Return the batch sizes; None if validation's is as large, or one of them is not known.

    In validation nothing is kept for backward, so a forward pass over a batch of the training's size takes no longer
    there. A sample is assumed to take as long to make in a batch of any size. On a device, the host's times of a
    forward pass do not include what the device computes.
    """
    steady, loaders = steady_of(session), session.settings.loaders
    found = required(session.validation, session.missing.get("validation", "no validation was measured"))
    known = {one.stage: one.batch_size or 0 for one in loaders if one.is_plain}
    n_loaders = sum(one.stage in ("train", "val") for one in loaders)
    forward_s = mean_phase_s(steady, "forward")
    if n_loaders != 2 or forward_s is None or found.span_s <= 0 or not is_cpu_run(session):
        return None
    size, now = known.get("train", 0), known.get("val", 0)
    if not 0 < now < size:
        return None
    scale = phase_s(steady, "validation") / found.span_s
    by_batch_s = (1 - now / size) * sum(phase_s(found, name) for name in STEP_PHASES if name != "data_wait")
    left_s = math.ceil(found.n_steps * now / size) * forward_s
    most_s = by_batch_s + phase_s(found, "data_wait")
    return _Batches(now, size, scale * max(0.0, by_batch_s - left_s), scale * most_s)
