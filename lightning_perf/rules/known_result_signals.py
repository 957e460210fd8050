"""Operators of a step that could be saved, and the findings of the rules on them."""

from typing import NamedTuple

from lightning_perf.records import (
    STEP_PHASES,
    Confidence,
    Finding,
    KnownKind,
    KnownResults,
    Method,
    Session,
    StageTimes,
)

from .findings import EvidenceLike, PrescriptionLike, timed_finding
from .rule import Skip
from .signals import is_cpu_run, phase_s, steady_of
from .step_signals import loops_of, model_profile_of
from .thresholds import LOW_SHARE
from .user_lines import computing_s


class Repeated(NamedTuple):
    """Operators of one kind, and the seconds of the steady span that they take.

    Attributes:
        claims: Seconds by phase, in proportion to all operators of the phase.
        least_s: Seconds as timed in the sampled step, if fewer; 0 on a device, where operators are not timed.
    """

    found: KnownResults
    steady: StageTimes
    claims: dict[str, float]
    least_s: float
    method: Method

    @property
    def where(self) -> str:
        """The line, at the beginning of a sentence."""
        return self.found.site or "The model"


def repeated_of(session: Session, kind: KnownKind) -> Repeated | None:
    """Return the operators of one kind; None if there are none, or if they take no noticeable time.

    Within a loop over tensors that costs more than they do, the loop is reported instead.

    Raises:
        Skip: The operators of no step were followed.
    """
    steady, profile = steady_of(session), model_profile_of(session)
    if "known_results" in profile.missing or profile.basis != "step":
        raise Skip(profile.missing.get("known_results", "the operators of no step were followed"))
    found = next((one for one in profile.known_results if one.kind == kind), None)
    if found is None:
        return None
    parts = {"forward": found.forward_part, "backward": found.backward_part}
    claims = {name: part * computing_s(session, steady, name) for name, part in parts.items()}
    if sum(claims.values()) < max(LOW_SHARE * steady.span_s, _loop_s(session, steady, found.site)):
        return None
    least_s = min(found.total_s * steady.n_steps, sum(claims.values())) if is_cpu_run(session) else 0.0
    return Repeated(found, steady, claims, least_s, "timed" if is_cpu_run(session) else "modeled")


def saving_finding(
    repeated: Repeated,
    *,
    summary: str,
    evidence: EvidenceLike,
    prescriptions: PrescriptionLike,
    basis: str,
    least_s: float | None = None,
    confidence: Confidence = "high",
) -> Finding:
    """Return a finding whose fix saves these operators; ``least_s`` is None where all of them are certain to go."""
    return timed_finding(
        repeated.steady,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        claims=repeated.claims,
        basis=basis,
        low_s=repeated.least_s if least_s is None else least_s,
        confidence=confidence,
        method=repeated.method,
    )


def _loop_s(session: Session, steady: StageTimes, site: str) -> float:
    """Return the seconds of the costliest loop over tensors that holds a line; 0 if none does."""
    name, _, number = site.partition(":")
    loops = loops_of(session.sync_calls) if session.sync_calls is not None and number else []
    shares = (
        loop.share
        for loop in loops
        if loop.file.replace("\\", "/").rpartition("/")[2] == name and loop.first_line <= int(number) <= loop.last_line
    )
    return max(shares, default=0.0) * phase_s(steady, *STEP_PHASES)
