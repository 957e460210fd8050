"""Rules whose gain is measured by replaying operators of one step with a treatment."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from lightning_perf.records import STEP_PHASES, Evidence, Finding, Hypothesis, Prescription, Replayed, Session, Severity

from .findings import AT_STAKE, WHY_NOT_MEASURED, fact, how_to_measure, make_finding, timed_finding, unapplied
from .rule import Rule, Skip, rule
from .signals import CODE_PHASES, is_cpu_run, phase_s, steady_of
from .thresholds import LOW_SHARE, NEAR_PERCENT, WIDE_RATIO
from .trace_reading import device_reading_of, reading_of
from .user_lines import computing_s
from .wording import number_of


class Diagnosis(NamedTuple):
    """The diagnosis of a rule before the speedup of its treatment is known.

    Attributes:
        symptom: Headline of the finding, without a final period.
        evidence: Evidence of the finding.
        prescription: The recommendation.
        effect: Clause that a measured speedup completes, e.g. ``"bf16 runs these operators"``.
        replayed_as: Treatment to replay, as in ``Hypothesis.treatment``; empty for that of the recommendation.
        phases: Phases in which the replayed operators run.
        other_phases: Phases of a CPU run whose operators were not replayed, and become as much faster at most.
        at_stake: Share of the time that the treatment affects and no other finding claims; on a device, of the critical
            path of a trace.
        most_s: Seconds of the steady span that the treatment affects at most, if it also affects the host; None if it
            affects only the operators.
        seen_s: Seconds of the steady span that the replayed operators took in the training; None for the time in the
            sampled step.
        batch_part: If the treatment makes batches fewer and larger, the part of them that is saved. At most the same
            part of a batch's other costs is saved, except those of loading and transferring samples.
        most_saved: Part of the time in ``phases`` that is saved at most. What may save most is replayed first.
        unmeasured: Severity if the speedup was not measured; None if nothing is reported then.
    """

    symptom: str
    evidence: tuple[Evidence | None, ...]
    prescription: Prescription
    effect: str
    replayed_as: str = ""
    phases: tuple[str, ...] = CODE_PHASES
    other_phases: tuple[str, ...] = ("validation",)
    at_stake: float = 0.0
    most_s: float | None = None
    seen_s: float | None = None
    batch_part: float = 0.0
    most_saved: float = 1.0
    unmeasured: Severity | None = "low"


_SEQUENCE = "sequence="

Diagnose: TypeAlias = Callable[[Session], Diagnosis | None]


def replayed(session: Session, treatment: str) -> Replayed | None:
    """Return the replay result of a treatment; None if it was not replayed.

    The part of sequences that is left was counted up to the replay, and may be slightly smaller in the whole run.
    """
    results: Sequence[Replayed] = session.replay.results if session.replay is not None else ()
    found = next((one for one in results if one.treatment == treatment), None)
    if not treatment.startswith(_SEQUENCE) or (found is not None and found.speedup is not None):
        return found
    larger = {_percent_of(one.treatment) - _percent_of(treatment): one
              for one in results if one.treatment.startswith(_SEQUENCE) and one.speedup is not None}  # fmt: skip
    return min([(by, one) for by, one in larger.items() if 0 < by <= NEAR_PERCENT], default=(0, found))[1]


def _percent_of(treatment: str) -> int:
    return round(100 * float(treatment.removeprefix(_SEQUENCE)))


def replay_rule(
    code: str,
    name: str,
    *,
    preflight: Diagnose | None = None,
    explains: tuple[str, ...] = (),
    yields_to: tuple[str, ...] = (),
    lowers_precision: bool = False,
) -> Callable[[Diagnose], Rule]:
    """Declare a rule whose treatment is replayed on operators of one step, by decorating the function that diagnoses.

    ``preflight`` returns the diagnosis from settings alone; None for a rule that needs measurements. For the other
    arguments see ``Rule``.
    """

    def declare(diagnose: Diagnose) -> Rule:
        @functools.wraps(diagnose)
        def check(session: Session) -> Finding | None:
            return replayed_finding(session, diagnose(session))

        def likely(session: Session) -> Finding | None:
            found = preflight(session) if preflight is not None else None
            return not_measured(found) if found is not None else None

        return rule(
            code,
            name,
            hypothesis=lambda session: hypothesis_of(session, diagnose(session)),
            preflight=likely if preflight is not None else None,
            explains=explains,
            yields_to=yields_to,
            lowers_precision=lowers_precision,
        )(check)

    return declare


def hypothesis_of(session: Session, found: Diagnosis | None) -> Hypothesis | None:
    """Return the replay that a diagnosis needs; None without a diagnosis, or a treatment."""
    treatment = (found.replayed_as or found.prescription.treatment) if found is not None else ""
    if found is None or not treatment:
        return None
    steady = steady_of(session)
    at_stake_s = computing_s(session, steady, *found.phases)
    known = replayed(session, treatment)
    return Hypothesis(
        treatment=known.treatment if known is not None else treatment,
        at_stake_s=found.most_saved * at_stake_s,
        least_part=min(1.0, LOW_SHARE * steady.span_s / max(at_stake_s, 1e-9)),
    )


def replayed_finding(session: Session, diagnosis: Diagnosis | None) -> Finding | None:
    """Return the finding with the measured speedup of a treatment.

    Returns:
        None without a diagnosis, or if the replay shows no noticeable speedup. If the treatment was not replayed, a
        finding of at most low severity without a gain, with the command that measures it.
    """
    if diagnosis is None:
        return None
    result = replayed(session, diagnosis.replayed_as or diagnosis.prescription.treatment)
    if result is not None and result.is_negligible:
        return None
    if result is None or result.speedup is None:
        missing = session.missing.get("replay", "operators were not replayed")
        return not_measured(diagnosis, result.reason if result is not None else missing, _at_stake(session, diagnosis))
    speedup = result.speedup
    if speedup.low <= 1.0 < speedup.high and speedup.high > WIDE_RATIO * speedup.low:
        reason = f"undecided: {speedup.low:.2f}x to {speedup.high:.2f}x after {result.n_rounds} rounds"
        return not_measured(diagnosis, reason, _at_stake(session, diagnosis))
    if speedup.low <= 1.0:
        return None
    steady = steady_of(session)
    phases = {name: computing_s(session, steady, name) for name in diagnosis.phases}
    within_s = sum(phases.values())
    if diagnosis.seen_s is not None:
        result = msgspec.structs.replace(result, seen_s=diagnosis.seen_s / steady.n_span_steps)
    if diagnosis.most_s is None:
        concerned_s = diagnosis.at_stake * steady.step_s.mean if not is_cpu_run(session) else 0.0
        part = _part_of_operators(session, result) if diagnosis.phases == CODE_PHASES else 1.0
        saved = _on_critical_path(session, *saved_s(result, within_s / steady.n_span_steps, concerned_s, part))
    else:
        within_s = min(within_s, diagnosis.most_s)
        saved = saved_s(result, within_s / steady.n_span_steps)
    low_s, high_s = (steady.n_span_steps * each for each in saved)
    if high_s < LOW_SHARE * steady.span_s:
        return None
    saved_part = high_s / sum(phases.values())
    phases |= _other_phases_s(session, diagnosis)
    claims = {name: saved_part * seconds for name, seconds in phases.items()}
    if diagnosis.batch_part:
        of_batches = (name for name in STEP_PHASES if name not in ("data_wait", "transfer"))
        claims |= {name: diagnosis.batch_part * phase_s(steady, name) for name in of_batches}
    is_wide = speedup.high > WIDE_RATIO * speedup.low
    times = f"{_times(speedup.low)}–{_times(speedup.high)}x" if is_wide else f"{_times(speedup.value)}x"
    finding = timed_finding(
        steady,
        summary=f"{diagnosis.symptom}; {diagnosis.effect} {times} faster on this machine (measured).",
        evidence=(
            *diagnosis.evidence,
            fact("measured speedup of these operators", speedup.value, "ratio", n=result.n_rounds),
        ),
        prescriptions=diagnosis.prescription,
        claims=claims,
        low_s=low_s,
        basis="measured on copies of sampled parameters"
        if diagnosis.phases[:1] == ("optimizer",)
        else f"measured on {number_of(result.n_operators, 'operator')} of this step",
        confidence="low" if is_wide else "high",
        # On a device without a trace, operators that were not replayed are unknown.
        method="replayed" if is_cpu_run(session) or diagnosis.at_stake or diagnosis.most_s is not None else "modeled",
    )
    if diagnosis.batch_part and finding.gain is not None:  # nothing else is saved in addition
        most, gain = 1 / (1 - diagnosis.batch_part), finding.gain
        gain = msgspec.structs.replace(gain, low=min(gain.low, most), high=min(gain.high, most))
        finding = msgspec.structs.replace(finding, gain=gain)
    return finding


def _other_phases_s(session: Session, diagnosis: Diagnosis) -> dict[str, float]:
    """Return the seconds of other phases in operators that a treatment may speed up as well, by phase."""
    steady, validation = steady_of(session), session.validation
    if not is_cpu_run(session) or diagnosis.most_s is not None or "forward" not in diagnosis.phases:
        return {}
    found = {name: computing_s(session, steady, name) for name in diagnosis.other_phases if name != "validation"}
    if "validation" in diagnosis.other_phases and validation is not None and validation.span_s > 0:
        part = phase_s(validation, *CODE_PHASES) / validation.span_s
        operators_s = min(1.0, part) * phase_s(steady, "validation")
        found["validation"] = min(operators_s, computing_s(session, steady, "validation"))
    return found


def _times(speedup: float) -> str:
    return f"{speedup:.1f}" if speedup >= 1.15 else f"{speedup:.2f}"


def not_measured(
    diagnosis: Diagnosis, reason: str = "no step has run yet", claims: Mapping[str, float] | None = None
) -> Finding | None:
    """Return a finding without a gain, with the command that measures it; None if the diagnosis needs a gain."""
    if diagnosis.unmeasured is None:
        return None
    prescription = unapplied(diagnosis.prescription)
    at_stake = (fact(AT_STAKE, diagnosis.at_stake, "fraction"),) if diagnosis.at_stake else ()
    return make_finding(
        severity=diagnosis.unmeasured,
        summary=f"{diagnosis.symptom}. {how_to_measure([prescription])}",
        evidence=(*diagnosis.evidence, *at_stake, fact(WHY_NOT_MEASURED, reason)),
        prescriptions=prescription,
        confidence="low",
        claims=claims,
    )


def _at_stake(session: Session, diagnosis: Diagnosis) -> dict[str, float]:
    """Return the time that a finding without a speedup affects, to rank findings of a trace; empty for timed steps.

    With timed steps, this time must not count as explained.
    """
    if not diagnosis.at_stake or session.steady is not None:
        return {}
    reading = reading_of(session)
    return reading.claims(diagnosis.at_stake * reading.trace.span_s)


def _part_of_operators(session: Session, result: Replayed) -> float:
    """Return the part of the sampled step's operators that were replayed; 1 if unknown."""
    operators_s = session.replay.operators_s if session.replay is not None else None
    return min(1.0, result.seen_s / operators_s) if result.seen_s is not None and operators_s else 1.0


def saved_s(result: Replayed, most_s: float, concerned_s: float = 0.0, part: float = 1.0) -> tuple[float, float]:
    """Return the seconds per step that a treatment saves at least and at most.

    The replayed operators took ``seen_s`` in the step and ``before_s`` in the replay; the interval includes both. Other
    operators that the treatment affects are assumed to keep their time (lower end) or to speed up equally (upper end).
    ``most_s`` limits the seconds per step in these operators, at the lower end to a ``part``: the sampled step may have
    been longer than usual. ``concerned_s`` are those in all affected operators of a trace, if known.
    """
    speedup = result.speedup
    assert speedup is not None
    times = [seconds for seconds in (result.before_s, result.seen_s) if seconds is not None]
    rest = max(1.0, result.concerned_s / result.seen_s) if result.concerned_s and result.seen_s else 1.0
    low_s, high_s = min(*times, part * most_s), min(max(max(times) * rest, concerned_s), most_s)
    return low_s * (1 - 1 / speedup.low), high_s * (1 - 1 / speedup.high)


def _on_critical_path(session: Session, low_s: float, high_s: float) -> tuple[float, float]:
    """Return the saved seconds per step on the critical path; the least is 0 without a profiler window."""
    if is_cpu_run(session):
        return low_s, high_s
    try:
        reading, _ = device_reading_of(session)
    except Skip:
        return 0.0, high_s
    n = reading.n_steps
    low_s, high_s = reading.device_savings(n * low_s, n * high_s)
    return low_s / n, high_s / n
