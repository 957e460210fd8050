"""Sampled steps for rules that use them: their operators, and the model profile of one of them."""

from collections.abc import Callable
from typing import TypeVar

from lightning_perf.records import (
    STEP_PHASES,
    Bound,
    Evidence,
    Finding,
    HostLine,
    ModelProfile,
    Session,
    StageTimes,
    SyncCall,
    SyncCalls,
    TensorLoop,
)

from .findings import EvidenceLike, PrescriptionLike, fact, timed_finding
from .rule import Skip, required
from .signals import CODE_PHASES, COMPUTE_PHASES, claims_within, phase_s, steady_of
from .thresholds import LOOP_MIN_REPEATS, LOW_SHARE, SYNC_MIN_PER_STEP

Answer = TypeVar("Answer")
UNREAD_BATCH = "no operator of the step reads the batch, so its size may not decide how much is computed"


def from_trace_or_steps(
    session: Session,
    from_trace: Callable[[Session], Answer],
    from_steps: Callable[[Session], Answer],
    field: str = "sync_calls",
) -> Answer:
    """Return the result from a profiler window, or else from the sampled steps, of which ``from_steps`` uses ``field``.

    If both functions raise Skip, so does this one, with both reasons.
    """
    try:
        return from_trace(session)
    except Skip as skip:
        if getattr(session, field) is None:
            raise
        reason = str(skip)
    try:
        return from_steps(session)
    except Skip as skip:
        raise Skip(f"{reason}; {skip}") from None


def sampled_steps_of(session: Session) -> tuple[SyncCalls, StageTimes]:
    """Return the sampled steps, and the steady steps that their shares apply to; raise Skip if either is missing."""
    calls = required(session.sync_calls, session.missing.get("sync_calls", "no step was sampled"))
    return calls, steady_of(session)


def user_sync_calls(calls: SyncCalls) -> list[SyncCall]:
    """Return the user's calls that make the host wait for a device (or would on a GPU), costliest first."""
    own = [call for call in calls.calls if call.owner == "user" and call.per_step >= SYNC_MIN_PER_STEP]
    return sorted(own, key=lambda call: (-(call.cost_s or 0.0), -call.per_step))


def loops_of(calls: SyncCalls) -> list[TensorLoop]:
    """Return the loops over tensors in forward, backward and optimizer that are worth reporting, costliest first."""
    return [loop for loop in calls.loops
            if is_computing(loop) and loop.repeats >= LOOP_MIN_REPEATS and loop.share >= LOW_SHARE]  # fmt: skip


def loop_at(session: Session, site: str) -> TensorLoop | None:
    """Return the costliest loop over a tensor that holds a line, e.g. ``"model.py:31"``; None if none does."""
    name, _, number = site.partition(":")
    loops = loops_of(session.sync_calls) if session.sync_calls is not None and number else []
    holding = (
        loop for loop in loops if loop.file.replace("\\", "/").rpartition("/")[2] == name and _holds(loop, int(number))
    )
    return max(holding, key=lambda loop: loop.share, default=None)


def is_within(loop: TensorLoop, line: SyncCall | HostLine) -> bool:
    """Return whether a line of code is one of a loop."""
    return are_in_one_file(loop, line) and _holds(loop, line.line)


def are_in_one_file(one: TensorLoop | SyncCall, other: SyncCall | HostLine) -> bool:
    """Return whether two places are in the same file; either path may lack its first folders."""
    ours, others = ("/" + code.file.replace("\\", "/").lstrip("/") for code in (one, other))
    return ours.endswith(others) or others.endswith(ours)


def _holds(loop: TensorLoop, line: int) -> bool:
    """Return whether a line of the file is one of a loop, or of its function if the loop's lines are unknown."""
    first, last = loop.lines or (loop.first_line, loop.last_line)
    return first <= line <= last


def is_computing(loop: TensorLoop) -> bool:
    """Return whether a loop runs in forward, backward or the optimizer; other rules cover callbacks and datasets."""
    return loop.phase in COMPUTE_PHASES


def loop_evidence(loop: TensorLoop, calls: SyncCalls) -> Evidence:
    """Return the share of step time in a loop as evidence."""
    return fact("loop ÷ step time", loop.share, "fraction", LOW_SHARE, calls.n_steps)


def loop_finding(
    steady: StageTimes,
    loop: TensorLoop,
    calls: SyncCalls,
    *,
    summary: str,
    evidence: EvidenceLike,
    prescriptions: PrescriptionLike,
) -> Finding:
    """Return a finding whose fix replaces a loop over a tensor by one operation.

    The gain of a loop in forward includes part of backward: the same fraction, by time or by number of operators,
    whichever is more. Backward runs an operator for each of forward, so the loop's fraction of forward's operators is
    at least twice its fraction of all. Of iterations that depend on one another, one operator of each remains. No gain
    is certain, because not every loop can be vectorized.
    """
    iterations = loop.iterations_per_step or loop.repeats
    remaining = iterations / max(iterations, loop.operators_per_step) if loop.is_recurrence else 1 / loop.repeats
    seconds = loop.share * max(0.0, 1 - remaining) * phase_s(steady, *STEP_PHASES)
    basis = "at most the loop, timed in sampled steps"
    phases: tuple[str, ...] = (loop.phase,)
    if loop.phase == "forward":
        forward_s, backward_s = phase_s(steady, "forward"), phase_s(steady, "backward")
        of_operators = 2 * loop.operators_per_step / calls.operators_per_step if calls.operators_per_step else 0.0
        of_forward = max(of_operators, seconds / forward_s) if forward_s > 0 else 0.0
        seconds += min(1.0, of_forward) * backward_s
        basis += ", and the same fraction of backward"
        phases = CODE_PHASES
    return timed_finding(
        steady,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        claims=claims_within(steady, seconds, phases),
        basis=basis,
        confidence="medium",
    )


def model_profile_of(session: Session) -> ModelProfile:
    """Return the profile of a step whose FLOPs were counted; raise Skip if those of no step were."""
    profile = session.model_profile
    if profile is None or profile.forward_flops is None:
        raise Skip(session.missing.get("model_profile", "the model's FLOPs were not counted"))
    return profile


def is_batch_unread(session: Session) -> bool:
    """Return whether no operator of the counted step reads the batch: what it computes may not depend on its size."""
    return session.model_profile is not None and session.model_profile.reads_batch is False


def bound_of(session: Session) -> Bound:
    """Return the bound of the profiled step, e.g. ``"launch"``; raise Skip if it is not known."""
    reason = session.missing.get("model_profile.ceilings", "the bound of the step is not known")
    return required(model_profile_of(session).bound, reason)
