"""For any part of a session and any trace, every rule has an outcome, and gains and claims are within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lightning_perf.records import SEVERITIES, Finding, Session, TraceRecord, Window
from lightning_perf.records.validation import checked
from lightning_perf.rules.engine import all_rules, diagnose, diagnose_trace, hypotheses, preflight
from lightning_perf.rules.findings import MAX_RECOVERABLE_SHARE, gain_span_s
from tests.fuzzing import FUZZ

from .any_records import document_of, values_of
from .session_builder import HEALTHY, build_session

ON_DEVICE = {"settings": {"trainer": {"accelerator": "cuda"}}}
SESSIONS = {
    "cpu": build_session({"shares": {"data_wait": 0.4, "validation": 0.2, "callbacks": 0.1}}),
    "ranks": build_session({"shares": {"logging": 0.3}, "run": {"world_size": 2}}),
    "device": build_session({"shares": {"data_wait": 0.3, "optimizer": 0.2}, **ON_DEVICE}),
}
PARTS = {field.name: field.type for field in msgspec.structs.fields(Session)}
OUTSIDE_THE_SPAN = ("PD311", "PD320")
"""Rules whose time is in steps outside the span, which therefore claim none of it."""

ANSWERS = (
    "findings",
    "outcomes",
    "verdict",
    "trials",
    "applied",
    "earlier",
    "autopilot",
    "provenance",
    "schema_version",
)
GROUPS = [
    *((name,) for name in PARTS if name not in (*ANSWERS, "windows")),
    ("run", "machine", "settings", "steady", "validation"),
]
PROFILED = settings(max_examples=40 * FUZZ, deadline=None, database=None, suppress_health_check=list(HealthCheck))
_STEP = {"name": "s", "duration_s": 0.0, "device_busy_s": None, "busy_fraction": None, "categories": {}}
_WITHOUT_CAUSES = {**HEALTHY["trace"], "whole": None, "what_if": [], "critical_path": {}, "steps": [_STEP]}


@pytest.mark.parametrize("names", GROUPS, ids="-".join)
def test_outcomes_are_within_bounds_when_a_part_of_the_session_is_arbitrary(names: tuple[str, ...]) -> None:
    @PROFILED
    @given(st.fixed_dictionaries({name: values_of(PARTS[name], name) for name in names}))
    def check(parts: dict[str, Any]) -> None:
        for base in SESSIONS.values():
            document = {**msgspec.to_builtins(base), **parts}
            session = msgspec.convert(checked(document, Session), Session)
            preflight(session)
            hypotheses(session)
            session = diagnose(session)
            assert [(one.code, one.reason) for one in session.outcomes if one.status == "failed"] == []
            _check_order(session.findings)
            if session.steady is not None:
                rest = any(phase.p10_s is not None for phase in session.steady.phases.values())
                is_claimed = not rest and session.telemetry is None
                _check_bounds(session.findings, gain_span_s(session.steady), is_claimed)

    check()


@settings(PROFILED, max_examples=100 * FUZZ)
@example(_WITHOUT_CAUSES)
@given(document_of(TraceRecord, without=ANSWERS))
def test_outcomes_are_within_bounds_when_a_trace_is_arbitrary(document: dict[str, Any]) -> None:
    trace = msgspec.convert(checked(document, TraceRecord), TraceRecord)
    said = diagnose_trace(trace)
    assert said.verdict is not None
    _check_bounds(said.findings, trace.span_s)
    window = Window(first_step=10, n_steps=3, status="recorded", reason="", cost_s=0.5, trace=trace)
    session = diagnose(msgspec.structs.replace(build_session(), windows=(window,)))
    assert [(one.code, one.reason) for one in session.outcomes if one.status == "failed"] == []
    assert session.steady is not None
    _check_bounds(session.findings, gain_span_s(session.steady))


def _check_bounds(findings: Sequence[Finding], span_s: float, is_claimed: bool = True) -> None:
    """Check gains; ``is_claimed``: neither the rest of the steps nor queueing for a core can save time as well."""
    for finding in findings:
        assert all(seconds >= 0 for seconds in finding.claims.values())
        if finding.gain is None:
            continue
        assert 1.0 <= finding.gain.low <= finding.gain.high
        recoverable_s = MAX_RECOVERABLE_SHARE * span_s
        if is_claimed and finding.code not in OUTSIDE_THE_SPAN:
            recoverable_s = min(sum(finding.claims.values()), recoverable_s)
        assert finding.gain.high <= span_s / (span_s - recoverable_s) * (1 + 1e-6), finding.code
        if finding.gain.method == "modeled":
            assert finding.severity in ("low", "info")


def _check_order(findings: Sequence[Finding]) -> None:
    """Check that findings are ordered by severity, except for causes right before symptoms that they explain."""
    rules = {rule.code: rule for rule in all_rules()}
    for finding, later in itertools.pairwise(findings):
        is_cause = any(
            other.code in rules[finding.code].explains or finding.code in rules[other.code].yields_to
            for other in findings
        )
        is_more_severe = SEVERITIES.index(later.severity) < SEVERITIES.index(finding.severity)
        assert is_cause or not is_more_severe, f"{finding.code} ({finding.severity}) before {later.code}"
