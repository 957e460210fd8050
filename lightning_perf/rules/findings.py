"""Build findings: evidence, recommendations, and the severity and speedup that follow from saved seconds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from lightning_perf.records import (
    Confidence,
    Effort,
    Evidence,
    Finding,
    Gain,
    LoaderSettings,
    Method,
    Prescription,
    Safety,
    Session,
    Severity,
    StageTimes,
)
from lightning_perf.stats.estimates import mean_interval
from lightning_perf.stats.steady import AGREEMENT

from .signals import mean_phase_s, phase_s
from .thresholds import (
    DEFAULT_PREFETCH,
    HIGH_SHARE,
    LOW_SHARE,
    MAX_RECOVERABLE_SHARE,
    MEDIUM_SHARE,
    NARROW_RATIO,
    SAME_WORK_FRACTION,
)
from .wording import duration, percent

WHY_NOT_MEASURED = "why the speedup was not measured"
"""Metric of the evidence that gives the reason, in a finding without a gain."""

AT_STAKE = "share of the time that the fix acts on"
"""The metric of the evidence by which findings without a gain are compared."""

SPREAD = AGREEMENT
"""Uncertainty of a time: halves of a run that differ by less count as equally fast."""

EvidenceLike: TypeAlias = Evidence | Iterable[Evidence | None]
"""Evidence of a finding; None is left out."""

PrescriptionLike: TypeAlias = Prescription | Iterable[Prescription | None]
"""Recommendations of a finding, best first; None is left out."""

Item = TypeVar("Item", bound=msgspec.Struct)


def fact(
    metric: str, value: float | str | None, unit: str = "", threshold: float | None = None, n: int | None = None
) -> Evidence:
    """Return evidence of a finding; the arguments are those of ``Evidence``. A value of None is shown as unknown."""
    return Evidence(metric=metric, value="unknown" if value is None else value, unit=unit, threshold=threshold, n=n)


def optional_fact(metric: str, value: float | str | None, *others: Any, **named: Any) -> Evidence | None:
    """Return evidence of a finding as ``fact`` does; None if the value is None."""
    return None if value is None else fact(metric, value, *others, **named)


def fix(summary: str, effort: Effort, safety: Safety = "exact", *, treatment: str = "", **fields: Any) -> Prescription:
    """Return a recommendation; the arguments are those of ``Prescription``."""
    return Prescription(summary=summary, effort=effort, safety=safety, treatment=treatment, **fields)


def trainer_fix(
    summary: str, safety: Safety = "exact", treatment: str = "", note: str = "", **flags: Any
) -> Prescription:
    """Return a recommendation of Trainer arguments; ``note`` is a comment behind the example."""
    shown = (f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in flags.items())
    code = f"Trainer(..., {', '.join(shown)})" + (f"  # {note}" if note else "")
    return fix(summary, "one line", safety, treatment=treatment, trainer_flags=flags, code=code)


def loader_fix(loader: LoaderSettings, summary: str, treatment: str, code: str = "", **arguments: Any) -> Prescription:
    """Return a recommendation of loader arguments, which is applied only if a treatment can change the loader.

    ``code`` are the arguments in the example, if different from ``arguments``.
    """
    shown = code or ", ".join(f"{key}={value}" for key, value in arguments.items())
    return fix(
        summary,
        "one line",
        treatment="" if loader.why_not_changed() else treatment,
        loader_args={} if loader.why_not_changed() else arguments,
        code=f"{loader.call}(..., {shown})",
    )


def without_workers(loader: LoaderSettings, summary: str) -> Prescription:
    """Recommend no workers, and reset the arguments for which ``DataLoader`` requires workers."""
    is_default = loader.prefetch_factor in (None, DEFAULT_PREFETCH)
    code = "num_workers=0" if is_default else "num_workers=0, prefetch_factor=None"
    return loader_fix(loader, summary, "loader-workers", code, num_workers=0, persistent_workers=False)


def compile_prescription(session: Session, what: str, has_graphs: bool = True) -> Prescription:
    """Recommend ``torch.compile``, which fuses small operators and, with ``has_graphs``, launches CUDA graphs.

    If a part of the model is compiled already, recommend it for the rest, which no treatment can try.
    """
    arguments, value = (', mode="reduce-overhead"', "reduce-overhead") if has_graphs else ("", "default")
    is_compiled = session.settings.model is not None and session.settings.model.is_compiled
    return fix(
        f"torch.compile {'the rest of ' if is_compiled else ''}the model{what}",
        "minutes",
        "numerics",
        treatment="" if is_compiled else "compile",
        code=f"model = torch.compile(model{arguments})  # before training",
        value=value,
    )


def make_finding(
    severity: Severity,
    summary: str,
    evidence: EvidenceLike,
    prescriptions: PrescriptionLike = (),
    confidence: Confidence = "high",
    claims: Mapping[str, float] | None = None,
    gain: Gain | None = None,
) -> Finding:
    """Return a finding; the arguments are those of ``Finding``. The engine adds code, name and category of the rule."""
    return Finding(
        code="",
        name="",
        category="",
        severity=severity,
        summary=summary,
        evidence=_listed(evidence),
        prescriptions=_listed(prescriptions),
        gain=gain,
        confidence=confidence,
        claims=dict(claims or {}),
    )


def severity_of(share: float) -> Severity:
    """Return the severity of a fix that saves this share of the steady span, from 0 to 1."""
    if share >= HIGH_SHARE:
        return "high"
    if share >= MEDIUM_SHARE:
        return "medium"
    return "low" if share >= LOW_SHARE else "info"


def certain_speedup(gain: Gain) -> float:
    """Return the speedup that is certain: the lower end, or the middle of a narrow interval; 1 if only modeled.

    An interval whose lower end is negligible does not count as narrow.
    """
    if gain.method == "modeled":
        return 1.0
    certain = 1 - 1 / gain.low
    is_narrow = possible_share(gain) <= NARROW_RATIO * certain and severity_of(certain) != "info"
    return (gain.low + gain.high) / 2 if is_narrow else gain.low


def certain_share(gain: Gain) -> float:
    """Return the share of the steady span that the fix saves for certain."""
    return 1 - 1 / certain_speedup(gain)


def possible_share(gain: Gain) -> float:
    """Return the largest share of the steady span that the fix may save."""
    return 1 - 1 / gain.high


def severity_of_gain(gain: Gain) -> Severity:
    """Return the severity by the certain speedup; ``low`` if only the upper end is worth acting on."""
    certain = severity_of(certain_share(gain))
    is_possible = severity_of(possible_share(gain)) != "info"
    return "low" if certain == "info" and is_possible else certain


def gain_span_s(steady: StageTimes) -> float:
    """Return the seconds that speedups refer to: the steady span without PerfDoctor's own hooks, never 0."""
    return steady.span_s - min(steady.own_s, steady.span_s / 2)


def gain_from(steady: StageTimes, low_s: float, high_s: float, basis: str, method: Method = "modeled") -> Gain:
    """Return the speedup of the steady span, without PerfDoctor's own time, if part of its wall time is saved.

    ``low_s`` are the seconds saved at least, ``high_s`` at most, without time that overlaps with other work; negative
    values count as 0. For the other arguments see ``Gain``.
    """
    span_s = gain_span_s(steady)
    high = min(max(high_s, 0.0) / span_s, MAX_RECOVERABLE_SHARE)
    low = min(max(low_s, 0.0) / span_s, high)
    return Gain(low=1 / (1 - low), high=1 / (1 - high), basis=basis, method=method)


def timed_finding(
    steady: StageTimes,
    *,
    summary: str,
    evidence: EvidenceLike,
    prescriptions: PrescriptionLike,
    claims: Mapping[str, float],
    basis: str,
    low_s: float = 0.0,
    queueing: float = 0.0,
    confidence: Confidence = "high",
    method: Method = "timed",
) -> Finding:
    """Return a finding whose gain and severity follow from the seconds that a fix saves.

    ``claims`` are the seconds saved at most, by phase, limited to the time of the phase; ``low_s`` are those saved at
    least, and the gain follows from both and their ``uncertainty_s``; a probed ``low_s`` has been reduced by it.
    ``queueing`` is the fraction of the time in which the training thread waits for a core because of the removed work:
    the same fraction of the remaining time may be saved in addition. ``basis`` and ``method`` say how the seconds were
    obtained. The first sentence of the summary is the headline of a verdict. For the other arguments see ``Finding``.
    """
    bounded = {phase: min(seconds, phase_s(steady, phase)) for phase, seconds in claims.items() if seconds > 0}
    claimed_s = sum(bounded.values())
    rest_s = _rest_saves_s(steady, bounded)
    high_s = claimed_s + rest_s
    if severity_of(rest_s / gain_span_s(steady)) != "info":
        basis += "; the upper end includes that the rest then runs as fast as in its fastest steps"
    if method != "probed":  # probed seconds include how much the steps vary
        low_s -= uncertainty_s(steady, low_s)
    high_s += uncertainty_s(steady, claimed_s) if _has_timed_rest(steady) else 0.0
    gain = gain_from(steady, low_s, high_s, basis, method)
    severity = severity_of_gain(gain)
    if queueing > 0:
        high_s += queueing * max(0.0, gain_span_s(steady) - high_s)
        basis += f"; the upper end includes {percent(queueing)} of the rest, which is queueing for a core"
        gain = gain_from(steady, low_s, high_s, basis, method)
    return make_finding(severity, summary, evidence, prescriptions, confidence, bounded, gain)


def uncertainty_s(steady: StageTimes, seconds: float) -> float:
    """Return by how much the seconds of a part of the steady span may be off.

    That is ``SPREAD`` of them, but not more than ``SPREAD`` of the rest, because the sum of both is known.
    """
    return SPREAD * max(0.0, min(seconds, gain_span_s(steady) - seconds))


def _rest_saves_s(steady: StageTimes, claims: Mapping[str, float]) -> float:
    """Return the seconds that the rest of the steps saves at most when a change saves the claimed seconds.

    Code that is removed no longer evicts the caches of what remains. How fast the rest then runs is seen in the fastest
    hundredth of the steps: it saves the difference to the mean, or only part of it if the change saves less time than
    the rest takes, in proportion. Waits for data save nothing, nor do phases that do other work in some steps.
    """
    if not _has_timed_rest(steady):
        return 0.0
    slower_s = 0.0
    for name, phase in steady.phases.items():
        mean_s = mean_phase_s(steady, name)
        fastest_s = phase.p10_s
        if fastest_s is None or not mean_s or phase.total_s <= 0 or name == "data_wait":
            continue
        least_s = SAME_WORK_FRACTION * (phase.p50_s or mean_s)
        if phase.p01_s is not None and phase.p01_s >= least_s:
            fastest_s = phase.p01_s
        if fastest_s >= least_s:
            slower_s += (1.0 - claims.get(name, 0.0) / phase.total_s) * (mean_s - fastest_s) * steady.n_span_steps
    saved_s = sum(claims.values())
    rest_s = gain_span_s(steady) - saved_s
    return slower_s * (saved_s / rest_s if saved_s < rest_s else 1.0)


def _has_timed_rest(steady: StageTimes) -> bool:
    """Return whether single steps were timed, unlike in a trace, and the host did not wait for a device in them."""
    return steady.device is None and any(phase.p10_s is not None for phase in steady.phases.values())


def removal_finding(
    steady: StageTimes,
    *,
    summary: str,
    evidence: EvidenceLike,
    prescriptions: PrescriptionLike,
    timed: Mapping[str, float],
    left: float,
    left_least: float | None = None,
    queueing: float = 0.0,
    confidence: Confidence = "high",
) -> Finding:
    """Return a finding whose first recommendation removes a known part of timed work.

    ``timed`` is the work that the change affects, in seconds of the steady span by phase. At most the fraction ``left``
    of it remains, and at least ``left_least`` (None for ``left``). For the other arguments see ``timed_finding``.
    """
    least = left if left_least is None else left_least
    total_s = sum(timed.values())
    return timed_finding(
        steady,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        claims={phase: (1 - least) * seconds for phase, seconds in timed.items()},
        low_s=(1 - left) * total_s,
        queueing=queueing,
        basis=f"{duration(total_s)} timed; {_remains(left, least)}",
        confidence=confidence,
    )


def least_mean(values: Sequence[float]) -> float:
    """Return the lower end of the 95 % interval of the mean; 0 for fewer than two values."""
    found = mean_interval(values)
    return 0.0 if found is None else max(0.0, found.low)


def with_measurement(finding: Finding) -> Finding:
    """Return a finding with the command that measures its gain, if the gain is not certain; else the finding unchanged.

    Recommendations that may change results are then not applied by ``Session.trainer_flags`` and ``loader_args``.
    """
    if finding.gain is None or is_measured(finding):
        return finding
    return msgspec.structs.replace(
        finding,
        summary=f"{finding.summary} {how_to_measure(finding.prescriptions)}",
        prescriptions=tuple(unapplied(one) if one.safety != "exact" else one for one in finding.prescriptions),
    )


def claims_time(finding: Finding) -> bool:
    """Return whether a finding rests on the time of steps."""
    return bool(finding.claims) or finding.gain is not None


def is_measured(finding: Finding) -> bool:
    """Return whether some speedup of a finding is certain; True for severity ``info``, which expects none."""
    gain = finding.gain
    if finding.severity == "info":
        return True
    if gain is None:
        return not any(one.metric == WHY_NOT_MEASURED for one in finding.evidence)
    return gain.method != "modeled" and (gain.low > 1.0 or gain.method not in ("timed", "probed"))


def how_to_measure(prescriptions: Sequence[Prescription]) -> str:
    """Return a sentence stating that the speedup was not measured, with the command that measures it."""
    treatment = prescriptions[0].treatment if prescriptions else ""
    if treatment:
        command = f"lightning-perf trial --try {treatment} -- python train.py"
    else:
        command = "lightning-perf compare BEFORE AFTER (sessions of a run without and with the change)"
    return f"The speedup was not measured; measure it: {command}."


def unapplied(prescription: Prescription) -> Prescription:
    """Return a recommendation without the arguments that would be applied automatically."""
    return msgspec.structs.replace(prescription, trainer_flags={}, loader_args={})


def _listed(items: Item | Iterable[Item | None]) -> tuple[Item, ...]:
    return (items,) if isinstance(items, msgspec.Struct) else tuple(one for one in items if one is not None)


def _remains(left: float, least: float) -> str:
    if left <= 0:
        return "none of it remains"
    if left >= 1:
        return "how much of it remains is not known"
    return f"{percent(left)} of it remains" if least == left else f"at most {percent(left)} of it remains"
