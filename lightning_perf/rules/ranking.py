"""The order of findings: causes before symptoms, and certain gains before uncertain ones."""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from lightning_perf.records import SEVERITIES, Confidence, Effort, Finding, RuleOutcome, Safety, Session

from .findings import AT_STAKE, certain_share, certain_speedup, possible_share, severity_of, severity_of_gain
from .rule import Rule
from .thresholds import EXPLAINED_PART, HIGH_SHARE, HOURS_WEIGHT, MEDIUM_SHARE, MINUTES_WEIGHT
from .verdict import QUALITY

_CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")

# How much the effort weighs against the gain among findings of one severity: quick wins come first. The weights grow
# more slowly than the time that each effort stands for, so that a large gain still beats a small convenience.
_EFFORT_WEIGHT: dict[Effort, float] = {"one line": 1.0, "minutes": MINUTES_WEIGHT, "hours": HOURS_WEIGHT}


def without_explained(
    answers: list[tuple[Rule, Finding | None, RuleOutcome]],
) -> list[tuple[Rule, Finding | None, RuleOutcome]]:
    """Return the answers without the findings that are symptoms of others.

    A finding explains lost time if it claims some and is above ``info``.
    """
    causes = [
        finding
        for rule, finding, _ in answers
        if finding is not None
        and not (rule.only_unexplained or rule.yields_its_time)
        and finding.claims
        and finding.severity != "info"
    ]
    kept: list[tuple[Rule, Finding | None, RuleOutcome]] = []
    for rule, finding, outcome in answers:
        explaining: list[Finding] = []
        if finding is not None and rule.only_unexplained:
            explaining = causes
        elif finding is not None and rule.yields_its_time:
            explaining = _claimants(finding, causes)
        if explaining:
            reason = f"explained by {', '.join(cause.code for cause in explaining)}"
            kept.append((rule, None, RuleOutcome(code=rule.code, status="passed", reason=reason)))
        else:
            kept.append((rule, finding, outcome))
    return kept


def _claimants(finding: Finding, causes: Sequence[Finding]) -> list[Finding]:
    """Return the causes that claim the time of a finding, if together they claim at least half of it."""
    claimants = [cause for cause in causes if any(finding.claims.get(phase) for phase in cause.claims)]
    taken_s = sum(
        min(seconds, max((cause.claims.get(phase, 0.0) for cause in claimants), default=0.0))
        for phase, seconds in finding.claims.items()
    )
    return claimants if taken_s >= EXPLAINED_PART * sum(finding.claims.values()) else []


def causes_first(findings: list[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """Return the findings with each cause moved up to the first symptom that it explains, and its alternatives last.

    A cause that is less certain than the symptom, or whose fix gains less for certain, stays where it is, unless only
    the symptom's fix changes what is trained or validated.
    """
    explains = {rule.code: rule.explains for rule in rules if rule.explains}
    yields_to = {rule.code: rule.yields_to for rule in rules if rule.yields_to}
    ordered = list(findings)
    for cause in findings:
        place = ordered.index(cause)
        for i, symptom in enumerate(ordered[:place]):
            if (symptom.code in explains.get(cause.code, ()) and _explains_most(cause, symptom)) or (
                cause.code in yields_to.get(symptom.code, ()) and _claims_more(cause, symptom)
            ):
                ordered.insert(i, ordered.pop(place))
                break
    lowering = {rule.code for rule in rules if rule.lowers_precision}
    return _precision_last(_alternatives_last(ordered, explains), explains, lowering)


def _precision_last(
    ordered: list[Finding], explains: Mapping[str, tuple[str, ...]], lowering: Collection[str]
) -> list[Finding]:
    """Return the findings with those that lower the precision behind a cause of more time than they can save.

    That this time passes there is as certain, though not how much of it the fix saves, and the fix keeps the numbers.
    """
    found = list(ordered)
    for finding in ordered:
        if finding.code not in lowering or finding.gain is None:
            continue
        most = max(possible_share(finding.gain), HIGH_SHARE)
        for place, one in enumerate(found):
            is_as_sure = _CONFIDENCES.index(one.confidence) <= _CONFIDENCES.index(finding.confidence)
            is_cause = is_as_sure and _safety(one) == "exact" and one.severity != "info"
            is_explained = any(one.code in explains.get(cause.code, ()) for cause in found[:place])
            is_larger = one.gain is not None and possible_share(one.gain) >= most
            if is_cause and is_larger and not is_explained and one.code not in lowering:
                if place > found.index(finding):
                    found.remove(finding)
                    found.insert(place, finding)
                break
    return found


def _alternatives_last(ordered: list[Finding], explains: Mapping[str, tuple[str, ...]]) -> list[Finding]:
    """Return the findings with alternatives of uncertain gain behind findings of their severity with a certain gain.

    A finding is an alternative if a cause before it explains it: it is another way to save the same time.
    """
    found = list(ordered)
    for place, finding in reversed(list(enumerate(ordered))):  # reversed, so that moved findings keep their order
        is_explained = any(finding.code in explains.get(cause.code, ()) for cause in ordered[:place])
        if not is_explained or _is_certain(finding):
            continue
        certain = [one for one in found if one.severity == finding.severity and _is_certain(one)]
        if certain and found.index(certain[-1]) > found.index(finding):
            found.remove(finding)
            found.insert(found.index(certain[-1]) + 1, finding)
    return found


def _is_certain(finding: Finding) -> bool:
    return finding.gain is not None and certain_speedup(finding.gain) > 1.0


def _is_noticeable(finding: Finding) -> bool:
    """Return whether the certain speedup is worth acting on."""
    return finding.gain is not None and severity_of(certain_share(finding.gain)) != "info"


def _explains_most(cause: Finding, symptom: Finding) -> bool:
    is_as_sure = _CONFIDENCES.index(cause.confidence) <= _CONFIDENCES.index(symptom.confidence)
    claimed_s = sum(symptom.claims.values())
    is_as_severe = SEVERITIES.index(cause.severity) <= SEVERITIES.index(symptom.severity)
    is_as_certain = _is_noticeable(cause) or not _is_noticeable(symptom)
    explained_s = sum(cause.claims.values())
    if cause.severity != "info" and _safety(cause) == "exact" and _safety(symptom) == "semantics":
        is_as_severe = is_as_certain = True
        explained_s = sum(cause.claims.get(name, 0.0) for name in symptom.claims)
    if not explained_s and not claimed_s:  # neither was measured
        explained_s, claimed_s = _at_stake(cause), _at_stake(symptom)
    return is_as_severe and is_as_certain and is_as_sure and explained_s >= EXPLAINED_PART * claimed_s


def _claims_more(cause: Finding, symptom: Finding) -> bool:
    """Return whether a cause claims most of a symptom's time and half as much in addition, or surely gains more.

    It must be as severe as the symptom, or save half as much for certain.
    """
    claimed_s = sum(symptom.claims.values())
    shared_s = sum(min(seconds, cause.claims.get(name, 0.0)) for name, seconds in symptom.claims.items())
    others_s = sum(cause.claims.values()) - shared_s
    gain, other = cause.gain, symptom.gain
    is_as_severe = SEVERITIES.index(cause.severity) <= SEVERITIES.index(symptom.severity) or (
        gain is not None and other is not None and certain_share(gain) >= EXPLAINED_PART * certain_share(other)
    )
    gains_more = gain is not None and other is not None and _is_certain(cause) and gain.low >= other.high
    is_more = others_s >= EXPLAINED_PART * claimed_s or gains_more
    return is_as_severe and shared_s >= EXPLAINED_PART * claimed_s and is_more


def _safety(finding: Finding) -> Safety | None:
    return finding.prescriptions[0].safety if finding.prescriptions else None


def _at_stake(finding: Finding) -> float:
    """Return the share of the time that the fix of a finding without a gain acts on; 0 where it is not known."""
    return next((float(one.value) for one in finding.evidence if one.metric == AT_STAKE), 0.0)


def weakened(finding: Finding, weakens: Sequence[Callable[[Finding], bool]]) -> Finding:
    """Return the finding with its confidence one step lower for each rule in ``weakens`` that doubts its measurement.

    Each step halves the certain part of the gain, and the severity follows.
    """
    n_steps = sum(is_weaker(finding) for is_weaker in weakens)
    if n_steps == 0 or finding.category == QUALITY:
        return finding
    place = min(_CONFIDENCES.index(finding.confidence) + n_steps, len(_CONFIDENCES) - 1)
    gain, severity = finding.gain, finding.severity
    if gain is not None:
        gain = msgspec.structs.replace(gain, low=1.0 + (gain.low - 1.0) / 2**n_steps)
        severity = max(severity, severity_of_gain(gain), key=SEVERITIES.index)
    return msgspec.structs.replace(finding, confidence=_CONFIDENCES[place], gain=gain, severity=severity)


def _effort_of(finding: Finding) -> float:
    return _EFFORT_WEIGHT[finding.prescriptions[0].effort] if finding.prescriptions else _EFFORT_WEIGHT["hours"]


def _share(finding: Finding, session: Session) -> float:
    """Return the share of the time that a finding explains: what its fix saves at most, or its claims on a trace."""
    if finding.gain is not None:
        return possible_share(finding.gain)
    trace = session.windows[-1].trace if session.steady is None and session.windows else None
    return min(1.0, sum(finding.claims.values()) / trace.span_s) if trace is not None and trace.span_s > 0 else 0.0


def _unknown(finding: Finding, share: float) -> int:
    """Return how little is known about a gain: 0 for one that is certain or can be large, 3 for none at all."""
    if finding.gain is None:
        return 1 if _at_stake(finding) else 3
    return 2 if share < MEDIUM_SHARE and not _is_certain(finding) else 0


def sort_key_of(
    finding: Finding, session: Session, lowers_precision: bool = False
) -> tuple[int, bool, bool, int, bool, float, float, int, str]:
    """Return the sort key: most severe first, findings about the measurement last, then certain gain by effort.

    Among findings of low severity, those come first that explain much of the time, though not how much of it the fix
    certainly saves. For ``lowers_precision`` see ``Rule``.
    """
    gain, share = finding.gain, _share(finding, session)
    return (
        SEVERITIES.index(finding.severity),
        finding.category == QUALITY,
        not (finding.severity == "low" and share >= HIGH_SHARE),
        _unknown(finding, share),
        lowers_precision,
        -(certain_speedup(gain) - 1.0 if gain is not None and _is_noticeable(finding) else 0.0) / _effort_of(finding),
        -(share if gain is not None or share else _at_stake(finding)) / _effort_of(finding),
        _CONFIDENCES.index(finding.confidence),
        finding.code,
    )
