"""Run the rules: each returns an outcome, and an error in one does not stop the others."""

import difflib
import functools
import importlib
import logging
import pkgutil
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from lightning_perf import rules
from lightning_perf.errors import ConfigError
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import (
    Finding,
    Hypothesis,
    Machine,
    RuleOutcome,
    Run,
    Session,
    Settings,
    TraceRecord,
    TrainerSettings,
    Window,
)

from .findings import fact, with_measurement
from .limits import within_limits
from .line_signals import with_line
from .rank_signals import ranks_with_finding
from .ranking import causes_first, sort_key_of, weakened, without_explained
from .rule import Rule, Skip
from .trace_reading import lacks_device_events
from .verdict import trace_verdict_of, verdict_of
from .without_trainer import without_refused_flags, without_trainer

EVERYTHING = "PD"

_RULE_MODULE = re.compile(r"\.pd\d{3}_\w+$")

# Categories of findings that are not about a single rank.
_OF_ALL_RANKS = ("distributed", "quality")

_log = logging.getLogger(__name__)

Reply = TypeVar("Reply")


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return all rules, sorted by code: one per module ``pdNNN_*`` in the category packages."""
    names = (m.name for m in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}.") if not m.ispkg)
    modules = (importlib.import_module(name) for name in names if _RULE_MODULE.search(name))
    found = (each for module in modules for each in vars(module).values() if isinstance(each, Rule))
    return tuple(sorted(found, key=lambda rule: rule.code))


def check_codes(select: Sequence[str] | None = None, ignore: Sequence[str] | None = None) -> None:
    """Raise ``ConfigError`` if a code or prefix matches no rule; the message names similar codes."""
    _check_known("select", select)
    _check_known("ignore", ignore)


def diagnose(session: Session, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None) -> Session:
    """Run the rules on a session.

    Args:
        session: The measurements; its findings, outcomes and verdict are replaced.
        select: Codes or prefixes of the rules to run; None for all. As in ruff, the longest match decides.
        ignore: Codes or prefixes of the rules to leave out.

    Returns:
        The session with ``findings`` (best first), ``outcomes`` (one per rule) and ``verdict``. If a rule raises an
        error, its outcome is ``failed``.

    Raises:
        ConfigError: A code in ``select`` or ``ignore`` matches no rule.
    """
    check_codes(select, ignore)
    answers = without_explained([(rule, *_answer(rule, session)) for rule in all_rules()])
    weakens = [rule.weakens for rule, finding, _ in answers if finding is not None and rule.weakens is not None]
    findings: list[Finding] = []
    outcomes: list[RuleOutcome] = []
    for rule, finding, outcome in answers:
        if not _is_selected(rule.code, select, ignore):
            outcomes.append(RuleOutcome(code=rule.code, status="ignored", reason="not selected"))
            continue
        outcomes.append(outcome)
        if finding is not None:
            possible = within_limits(finding, session, rule.is_host_time)
            found = with_line(weakened(possible, weakens), session, rule.line_of)
            findings.append(_with_ranks(session, with_measurement(found)))
    findings = causes_first(_sorted(findings, session), all_rules())
    return msgspec.structs.replace(
        session, findings=tuple(findings), outcomes=tuple(outcomes), verdict=verdict_of(session, findings, outcomes)
    )


def _with_ranks(session: Session, finding: Finding) -> Finding:
    """Return the finding with the ranks that have it as evidence, if other ranks do not have it."""
    ranks = ranks_with_finding(session, f"{finding.code} {finding.name}")
    if not ranks or finding.category in _OF_ALL_RANKS:
        return finding
    return msgspec.structs.replace(finding, evidence=(*finding.evidence, fact("on ranks", ranks)))


def diagnose_trace(
    record: TraceRecord, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None
) -> TraceRecord:
    """Run the rules on a trace without a session; rules that need timed steps or settings are skipped.

    The record's findings and verdict are replaced. For other arguments and errors see ``diagnose``.

    Returns:
        The record with ``findings``, best first, and ``verdict``. Shares and gains refer to the analyzed time.
    """
    window = Window(first_step=0, n_steps=len(record.steps), status="recorded", reason="", cost_s=0.0, trace=record)
    if lacks_device_events(record):
        window = msgspec.structs.replace(window, status="empty", reason=record.missing.get("device", ""))
    session = Session(
        run=Run(id="trace", stage="fit", status="finished", started_at="", wall_s=record.span_s),
        machine=Machine(os="", python=""),
        settings=Settings(trainer=TrainerSettings(accelerator=record.device.kind if record.device else None)),
        windows=(window,),
        missing={"steady": "a trace alone has no timed steps"},
    )
    answered = diagnose(session, select, ignore)
    verdict = trace_verdict_of(record, answered.findings, answered.outcomes)
    return msgspec.structs.replace(record, findings=answered.findings, verdict=verdict)


def preflight(
    session: Session, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None
) -> tuple[Finding, ...]:
    """Return likely findings from settings alone, before the first step.

    The session has ``settings`` and ``machine``. For other arguments and errors see ``diagnose``.

    Returns:
        Findings with ``is_preflight`` and low confidence, best first.
    """
    check_codes(select, ignore)
    found: list[Finding] = []
    for rule in all_rules():
        if rule.preflight is None or not _is_selected(rule.code, select, ignore):
            continue
        finding = _labeled(rule, _reply_of(rule, rule.preflight, session, "on the settings"), session)
        if finding is not None:
            found.append(msgspec.structs.replace(finding, confidence="low", is_preflight=True))
    return tuple(_sorted(found, session))


def _sorted(findings: Sequence[Finding], session: Session) -> list[Finding]:
    lowering = {rule.code for rule in all_rules() if rule.lowers_precision}
    return sorted(findings, key=lambda finding: sort_key_of(finding, session, finding.code in lowering))


def hypotheses(
    session: Session, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None
) -> tuple[Hypothesis, ...]:
    """Return the treatments that rules need replayed on the operators of this session, by time at stake.

    For the other arguments see ``diagnose``.
    """
    found: dict[str, Hypothesis] = {}
    for rule in all_rules():
        if rule.hypothesis is None or not _is_selected(rule.code, select, ignore):
            continue
        hypothesis = _reply_of(rule, rule.hypothesis, session, "to request a replay")
        if hypothesis is not None:
            found.setdefault(hypothesis.treatment, hypothesis)
    return tuple(sorted(found.values(), key=lambda one: -one.at_stake_s))


def _reply_of(rule: Rule, question: Callable[[Session], Reply | None], session: Session, what: str) -> Reply | None:
    """Return the reply of a rule; None if it lacks a measurement, or raises an error, which is logged."""
    try:
        return question(session)
    except Skip:
        return None
    except Exception as error:  # noqa: BLE001 - an error in a rule must not stop training
        raise_if_from_signal(error)
        _log.warning("%s failed %s: %s: %s", rule.code, what, type(error).__name__, error)
        return None


def _labeled(rule: Rule, finding: Finding | None, session: Session) -> Finding | None:
    """Return the finding with code, name and category of its rule, and without flags that the training cannot set.

    Outside of ``fit``, no time is called training time.
    """
    if finding is None:
        return None
    summary = finding.summary if session.run.stage == "fit" else finding.summary.replace("training time", "the time")
    labeled = msgspec.structs.replace(finding, code=rule.code, name=rule.name, category=rule.category, summary=summary)
    if not session.run.has_trainer:
        return without_trainer(labeled)
    return without_refused_flags(labeled, session.settings.trainer)


def _answer(rule: Rule, session: Session) -> tuple[Finding | None, RuleOutcome]:
    missing = session.missing.get(f"steady.phases.{rule.needs_phase}")
    if missing is not None:
        return None, RuleOutcome(code=rule.code, status="skipped", reason=missing)
    try:
        finding = _labeled(rule, rule.check(session), session)
    except Skip as skip:
        return None, RuleOutcome(code=rule.code, status="skipped", reason=str(skip))
    except Exception as error:  # noqa: BLE001 - the outcome reports the error
        raise_if_from_signal(error)
        reason = f"{type(error).__name__}: {error}"
        return None, RuleOutcome(code=rule.code, status="failed", reason=reason)
    return finding, RuleOutcome(code=rule.code, status="passed" if finding is None else "finding")


def _check_known(argument: str, patterns: Sequence[str] | None) -> None:
    """Raise ``ConfigError`` unless each pattern matches a rule; ``argument`` (select or ignore) is for the message."""
    if patterns is None:
        return
    codes = [rule.code for rule in all_rules()]
    accepted = 'a code such as "PD101", or a prefix such as "PD1" (a category) or "PD" (all)'
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise ConfigError(f"{argument}={patterns!r} is not a list; expected a list of strings, each {accepted}")
    for pattern in patterns:
        close: list[str] = []
        if isinstance(pattern, str) and len(pattern) >= len(EVERYTHING):
            if any(code.startswith(pattern) for code in codes):
                continue
            known = sorted({*codes, *(code[:3] for code in codes), EVERYTHING})
            close = difflib.get_close_matches(pattern.upper(), known, n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ConfigError(f"{argument} contains {pattern!r}, which matches no rule; expected {accepted}.{hint}")


def _is_selected(code: str, select: Sequence[str] | None, ignore: Sequence[str] | None) -> bool:
    """Return whether a rule is selected: the longest matching pattern decides; ``ignore`` wins a tie."""
    wanted = _longest(code, (EVERYTHING,) if select is None else select)
    return wanted > _longest(code, ignore or ())


def _longest(code: str, patterns: Sequence[str]) -> int:
    return max((len(pattern) for pattern in patterns if code.startswith(pattern)), default=0)
