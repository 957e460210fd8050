"""Runs the rules: every rule is answered for, none is silent, and none can end the caller's run."""

from __future__ import annotations

import functools
import importlib
import logging
import pkgutil
import re
from collections.abc import Sequence

import msgspec

from lightning_perf import rules
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import (
    SEVERITIES,
    Confidence,
    Effort,
    Evidence,
    Finding,
    Hypothesis,
    Machine,
    RuleOutcome,
    Run,
    Session,
    TraceRecord,
    Window,
)

from .gain import with_measurement
from .line_signals import with_line, within_operators
from .rank_signals import where_found
from .rule import EXPLAINED_SHARE, Rule, Skip
from .selection import check_known, is_selected
from .severity import HIGH_SHARE, certain_speedup, possible_share, severity_of_gain
from .trace_signals import is_blind
from .verdict import QUALITY, trace_verdict_of, verdict_of

_RULE_MODULE = re.compile(r"\.pd\d{3}_\w+$")
_CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")

# How much the effort weighs against the gain when findings are as severe as one another: quick wins come first.
# One line, some minutes (about 5 to 10) and hours are the steps in which one introduction to profiling ranks its
# advice; the weights grow more slowly than the time, so that a large gain still beats a small convenience.
_EFFORT_WEIGHT: dict[Effort, float] = {"one line": 1.0, "minutes": 2.0, "hours": 8.0}

# These speak of all ranks, or of the measurement.
_OF_ALL_RANKS = ("distributed", "quality")

_log = logging.getLogger(__name__)


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code: the ``RULE`` of each module ``pdNNN_*`` in the category packages."""
    modules = (m.name for m in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}.") if not m.ispkg)
    found = (importlib.import_module(name).RULE for name in modules if _RULE_MODULE.search(name))
    return tuple(sorted(found, key=lambda rule: rule.code))


def check_codes(select: Sequence[str] | None = None, ignore: Sequence[str] | None = None) -> None:
    """Checks a selection of rules before anything is run.

    Args:
        select: Codes or prefixes of the rules to run; None for all.
        ignore: Codes or prefixes of the rules to leave out.

    Raises:
        ConfigError: One of them starts no rule's code; the message names close ones.
    """
    codes = [rule.code for rule in all_rules()]
    check_known("select", select, codes)
    check_known("ignore", ignore, codes)


def diagnose(session: Session, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None) -> Session:
    """Runs the rules over a session.

    Args:
        session: What was measured; findings, outcomes and verdict that it holds already are replaced.
        select: Codes or prefixes of the rules to run; None for all. As in ruff the longest match decides.
        ignore: Codes or prefixes of the rules to leave out.

    Returns:
        The session with ``findings`` (best first), ``outcomes`` (one a rule) and ``verdict``. A rule that raises is
        an outcome ``failed`` with its error, never an exception here.

    Raises:
        ConfigError: ``select`` or ``ignore`` names no rule.
    """
    check_codes(select, ignore)
    answers = _without_explained([(rule, *_answer(rule, session)) for rule in all_rules()])
    weakening = [rule for rule, finding, _ in answers if finding is not None and rule.weakens is not None]
    findings: list[Finding] = []
    outcomes: list[RuleOutcome] = []
    for rule, finding, outcome in answers:
        if not is_selected(rule.code, select, ignore):
            outcomes.append(RuleOutcome(code=rule.code, status="ignored", reason="not selected"))
            continue
        outcomes.append(outcome)
        if finding is not None:
            found = with_line(_weakened(within_operators(finding, session), weakening), session)
            findings.append(_placed(session, with_measurement(found)))
    findings = _causes_first(sorted(findings, key=lambda finding: _rank(finding, session)))
    return msgspec.structs.replace(
        session,
        findings=tuple(findings),
        outcomes=tuple(outcomes),
        verdict=verdict_of(session, findings, outcomes),
    )


def _placed(session: Session, finding: Finding) -> Finding:
    """A finding of one rank with the ranks that it was found on, where others did not find it."""
    where = where_found(session, f"{finding.code} {finding.name}")
    if not where or finding.category in _OF_ALL_RANKS:
        return finding
    return msgspec.structs.replace(finding, evidence=(*finding.evidence, Evidence(metric="on ranks", value=where)))


def diagnose_trace(
    record: TraceRecord, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None
) -> TraceRecord:
    """Runs the rules over a trace alone, without a session: those that need timed steps or settings are skipped.

    Args:
        record: What a trace says; findings and verdict that it holds already are replaced.
        select: As for ``diagnose``.
        ignore: As for ``diagnose``.

    Returns:
        The record with ``findings``, best first, and ``verdict``. Shares and gains are of the time analysed in it.

    Raises:
        ConfigError: ``select`` or ``ignore`` names no rule.
    """
    reason = record.missing.get("device", "") if is_blind(record) else record.source
    session = Session(
        run=Run(id="trace", stage="fit", status="finished", started_at="", wall_s=record.span_s),
        machine=Machine(os="", python=""),
        windows=(
            Window(
                first_step=0,
                n_steps=len(record.steps),
                status="empty" if is_blind(record) else "recorded",
                reason=reason,
                cost_s=0.0,
                trace=record,
            ),
        ),
        missing={"steady": "a trace alone holds no timed steps"},
    )
    answered = diagnose(session, select, ignore)
    verdict = trace_verdict_of(record, answered.findings, answered.outcomes)
    return msgspec.structs.replace(record, findings=answered.findings, verdict=verdict)


def preflight(
    session: Session, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None
) -> tuple[Finding, ...]:
    """What the settings alone make likely, before the first step.

    Args:
        session: Its ``settings`` and ``machine`` are read.
        select: As for ``diagnose``.
        ignore: As for ``diagnose``.

    Returns:
        Findings with ``is_preflight`` and low confidence, best first.

    Raises:
        ConfigError: ``select`` or ``ignore`` names no rule.
    """
    check_codes(select, ignore)
    findings = []
    for rule in all_rules():
        if rule.preflight is None or not is_selected(rule.code, select, ignore):
            continue
        try:
            finding = rule.preflight(session)
        except Skip:
            continue
        except Exception as error:  # noqa: BLE001 - a rule must not end the user's training; it is reported
            raise_if_from_signal(error)
            _log.warning("%s could not look at the settings: %s: %s", rule.code, type(error).__name__, error)
            continue
        if finding is not None:
            findings.append(msgspec.structs.replace(finding, confidence="low", is_preflight=True))
    return tuple(sorted(findings, key=lambda finding: _rank(finding, session)))


def hypotheses(
    session: Session, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None
) -> tuple[Hypothesis, ...]:
    """Return the treatments whose effect rules want measured on this session's operators, largest first.

    Args:
        session: What was measured so far.
        select: As for ``diagnose``.
        ignore: As for ``diagnose``.
    """
    found: dict[str, Hypothesis] = {}
    for rule in all_rules():
        if rule.hypothesis is None or not is_selected(rule.code, select, ignore):
            continue
        try:
            asked = rule.hypothesis(session)
        except Skip:
            continue
        except Exception as error:  # noqa: BLE001 - a rule must not end the user's training; it is reported
            raise_if_from_signal(error)
            _log.warning("%s could not ask for a replay: %s: %s", rule.code, type(error).__name__, error)
            continue
        if asked is not None:
            found.setdefault(asked.treatment, asked)
    return tuple(sorted(found.values(), key=lambda one: -one.at_stake_s))


def _answer(rule: Rule, session: Session) -> tuple[Finding | None, RuleOutcome]:
    try:
        finding = rule.check(session)
    except Skip as skip:
        return None, RuleOutcome(code=rule.code, status="skipped", reason=str(skip))
    except Exception as error:  # noqa: BLE001 - whatever a rule raises is told in its outcome
        raise_if_from_signal(error)
        reason = f"{type(error).__name__}: {error}"
        return None, RuleOutcome(code=rule.code, status="failed", reason=reason)
    return finding, RuleOutcome(code=rule.code, status="passed" if finding is None else "finding")


def _without_explained(
    answers: list[tuple[Rule, Finding | None, RuleOutcome]],
) -> list[tuple[Rule, Finding | None, RuleOutcome]]:
    """The answers without findings that are mere symptoms of what others explain.

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
    """Those that claim the time of a finding, if together it is at least half of it."""
    claimants = [cause for cause in causes if any(finding.claims.get(phase) for phase in cause.claims)]
    taken_s = sum(
        min(seconds, max((cause.claims.get(phase, 0.0) for cause in claimants), default=0.0))
        for phase, seconds in finding.claims.items()
    )
    return claimants if taken_s >= 0.5 * sum(finding.claims.values()) else []


def _causes_first(findings: list[Finding]) -> list[Finding]:
    """Return the findings with each cause moved up to the first symptom that it explains.

    A cause that is less certain than the symptom, or whose fix gains less for certain, stays where it is.
    """
    explains = {rule.code: rule.explains for rule in all_rules() if rule.explains}
    ordered = list(findings)
    for cause in findings:
        place = ordered.index(cause)
        for symptom in ordered[:place]:
            if symptom.code in explains.get(cause.code, ()) and _explains_most(cause, symptom):
                ordered.insert(ordered.index(symptom), ordered.pop(place))
                break
    return ordered


def _explains_most(cause: Finding, symptom: Finding) -> bool:
    is_as_sure = _CONFIDENCES.index(cause.confidence) <= _CONFIDENCES.index(symptom.confidence)
    claimed_s = sum(symptom.claims.values())
    is_as_severe = SEVERITIES.index(cause.severity) <= SEVERITIES.index(symptom.severity)
    return is_as_severe and is_as_sure and sum(cause.claims.values()) >= EXPLAINED_SHARE * claimed_s


def _weakened(finding: Finding, weakening: Sequence[Rule]) -> Finding:
    """Return the finding with its confidence one step lower for each finding about the measurement that it rests on.

    Each step halves the certain part of the gain, and the severity follows.
    """
    n_steps = sum(rule.weakens(finding) for rule in weakening if rule.weakens is not None and rule.category == QUALITY)
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


def _rank(finding: Finding, session: Session) -> tuple[int, bool, bool, bool, float, float, int, str]:
    """Return the sort key: most severe first, findings about the measurement last, then certain gain by effort.

    Among findings of low severity, those come first that explain much of the time, though not how much of it the fix
    certainly saves.
    """
    gain, share = finding.gain, _share(finding, session)
    return (
        SEVERITIES.index(finding.severity),
        finding.category == QUALITY,
        not (finding.severity == "low" and share >= HIGH_SHARE),
        gain is None,
        -(certain_speedup(gain) - 1.0 if gain is not None else 0.0) / _effort_of(finding),
        -share / _effort_of(finding),
        _CONFIDENCES.index(finding.confidence),
        finding.code,
    )
