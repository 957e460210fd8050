"""Operators of a step that could be saved, and the findings of the rules on them."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lightning_perf.records import (
    STEP_PHASES,
    Confidence,
    Evidence,
    Finding,
    KnownKind,
    KnownResults,
    Method,
    Session,
    StageTimes,
)

from .findings import PrescriptionLike, fact, timed_finding
from .rule import Rule, Skip, rule
from .signals import is_cpu_run, phase_s, steady_of
from .step_signals import loop_at, model_profile_of
from .thresholds import LOW_SHARE
from .user_lines import computing_s


class Repeated(NamedTuple):
    """Operators of one kind, and the seconds of the steady span that they take.

    Attributes:
        claims: Seconds by phase, in proportion to all operators of the phase.
        least_s: Seconds as timed in the sampled step, if fewer; 0 on a device, where operators are not timed.
    """

    session: Session
    found: KnownResults
    steady: StageTimes
    claims: dict[str, float]
    least_s: float
    method: Method

    @property
    def where(self) -> str:
        """The line, at the beginning of a sentence."""
        return self.found.site or "The model"

    def saving_finding(
        self,
        *,
        summary: str,
        counted: str,
        prescriptions: PrescriptionLike,
        basis: str,
        more: Sequence[Evidence] = (),
        least_s: float | None = None,
        confidence: Confidence = "high",
    ) -> Finding:
        """Return a finding whose fix saves these operators.

        ``counted`` names them in the evidence, ``more`` is further evidence; ``least_s`` is None if all of them
        are certain to be saved.
        """
        found = self.found
        parts = {"forward": found.forward_part, "backward": found.backward_part}
        return timed_finding(
            self.steady,
            summary=summary,
            evidence=(
                fact(counted, found.n_operators, "count"),
                *(fact(f"their part of {name}'s operators", part, "fraction") for name, part in parts.items() if part),
                *more,
            ),
            prescriptions=prescriptions,
            claims=self.claims,
            basis=basis,
            low_s=self.least_s if least_s is None else least_s,
            confidence=confidence,
            method=self.method,
        )


def known_result_rule(
    code: str, name: str, kind: KnownKind, yields_to: tuple[str, ...] = ()
) -> Callable[[Callable[[Repeated], Finding | None]], Rule]:
    """Declare a rule on the operators of one kind, by decorating the function that returns their finding.

    The function is called only if there are such operators. For ``yields_to`` see ``Rule``.
    """

    def declare(describe: Callable[[Repeated], Finding | None]) -> Rule:
        @functools.wraps(describe)
        def check(session: Session) -> Finding | None:
            repeated = repeated_of(session, kind)
            return describe(repeated) if repeated is not None else None

        return rule(code, name, yields_to=yields_to)(check)

    return declare


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
    loop = loop_at(session, found.site)
    loop_s = loop.share * phase_s(steady, *STEP_PHASES) if loop is not None else 0.0
    if sum(claims.values()) < max(LOW_SHARE * steady.span_s, loop_s):
        return None
    least_s = min(found.total_s * steady.n_span_steps, sum(claims.values())) if is_cpu_run(session) else 0.0
    return Repeated(session, found, steady, claims, least_s, "timed" if is_cpu_run(session) else "modeled")
