"""The engine: selection, failing rules, order, confidence and verdict."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from lightning_perf.errors import ConfigError
from lightning_perf.records import Evidence, Finding, Gain, Prescription
from lightning_perf.rules import engine
from lightning_perf.rules.engine import all_rules, check_codes, diagnose, preflight
from lightning_perf.rules.findings import AT_STAKE, WHY_NOT_MEASURED, fact, fix, is_measured
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.verdict import expectation

from .session_builder import build_session

STARVED = {"shares": {"data_wait": 0.54}, "loader": {"num_workers": 0, "persistent_workers": False}}


def _finding(code: str = "PD999", **changes: object) -> Finding:
    fields = {"code": code, "name": code, "category": "host", "severity": "low", "summary": "One. Two.",
              "evidence": (Evidence(metric="m", value=1),)}  # fmt: skip
    return Finding(**{**fields, **changes})


def _rule(code: str, check: object, **changes: object) -> Rule:
    return Rule(**{"code": code, "name": code.lower(), "category": "host", "check": check, **changes})


@pytest.fixture
def use_rules(monkeypatch):
    def use(*rules: Rule) -> None:
        monkeypatch.setattr(engine, "all_rules", lambda: rules)

    return use


def _raise(error: Exception) -> None:
    raise error


def test_engine_returns_an_outcome_for_every_rule_when_diagnosing():
    session = diagnose(build_session(STARVED))
    assert [outcome.code for outcome in session.outcomes] == [rule.code for rule in all_rules()]
    found = {outcome.code for outcome in session.outcomes if outcome.status == "finding"}
    assert found == {finding.code for finding in session.findings}


def test_engine_reports_a_failed_rule_when_it_raises(use_rules):
    use_rules(
        _rule("PD801", lambda session: _raise(ZeroDivisionError("by zero"))), _rule("PD802", lambda session: None)
    )
    session = diagnose(build_session())
    failed, passed = session.outcomes
    assert (failed.status, failed.reason) == ("failed", "ZeroDivisionError: by zero")
    assert passed.status == "passed"
    assert "; 1 rule failed" in session.verdict.text


def test_engine_records_the_reason_when_a_rule_skips(use_rules):
    use_rules(_rule("PD801", lambda session: _raise(Skip("no thermometer"))))
    (outcome,) = diagnose(build_session()).outcomes
    assert (outcome.status, outcome.reason) == ("skipped", "no thermometer")


def test_preflight_continues_when_a_rule_raises(use_rules, caplog):
    use_rules(
        _rule("PD801", lambda s: None, preflight=lambda s: _raise(KeyError("x"))),
        _rule("PD802", lambda s: None, preflight=lambda s: _finding("PD802")),
    )
    assert [finding.code for finding in preflight(build_session())] == ["PD802"]
    assert "PD801" in caplog.text


@pytest.mark.parametrize(
    ("select", "ignore", "kept"),
    [
        (None, None, {"PD101", "PD503"}),
        (["PD1"], None, {"PD101"}),
        (["PD503"], None, {"PD503"}),
        (None, ["PD1"], {"PD503"}),
        (["PD101"], ["PD1"], {"PD101"}),
        (["PD1"], ["PD101"], set()),
        (["PD"], ["PD101"], {"PD503"}),
        (["PD101"], ["PD101"], set()),
        (("PD1", "PD5"), ("PD50",), {"PD101"}),
    ],
)
def test_selection_follows_the_longest_prefix_when_both_are_given(select, ignore, kept):
    sick = {**STARVED, "settings": {"trainer": {"is_anomaly_detection_on": True}}}
    session = diagnose(build_session(sick), select=select, ignore=ignore)
    assert {finding.code for finding in session.findings} == kept
    ignored = {outcome.code for outcome in session.outcomes if outcome.status == "ignored"}
    assert not ignored & kept
    assert {"PD101", "PD503"} - kept <= ignored


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"select": ["PD110x"]}, ["select", "'PD110x'", '"PD101"', '"PD1"']),
        ({"ignore": ["pd101"]}, ["ignore", "'pd101'", "Did you mean PD101"]),
        ({"select": ["PD111x"]}, ["Did you mean PD111"]),
        ({"select": "PD1"}, ["not a list", "'PD1'"]),
        ({"select": [101]}, ["101"]),
        ({"select": ["P"]}, ["'P'"]),
        ({"select": [""]}, ["''"]),
        ({"select": 5}, ["5", "not a list"]),
    ],
)
def test_check_codes_lists_accepted_codes_when_a_code_is_unknown(arguments, words):
    with pytest.raises(ConfigError) as caught:
        check_codes(**arguments)
    for word in [*words, "expected"]:
        assert word in str(caught.value)
    with pytest.raises(ConfigError):
        diagnose(build_session(), **arguments)
    with pytest.raises(ConfigError):
        preflight(build_session(), **arguments)


def test_findings_are_ordered_by_severity_then_gain_over_effort_when_several(use_rules):
    def gain(high: float) -> Gain:
        return Gain(low=1.0, high=high, basis="")

    def recommended(effort: str) -> tuple[Prescription, ...]:
        return (Prescription(treatment="", summary="do", safety="exact", effort=effort),)

    ordered = [
        _finding("PD805", severity="high"),
        _finding("PD804", severity="medium", gain=gain(1.4), prescriptions=recommended("one line")),
        _finding("PD803", severity="medium", gain=gain(1.6), prescriptions=recommended("minutes")),
        _finding("PD802", severity="medium", gain=gain(2.0), prescriptions=recommended("hours")),
        _finding("PD801", severity="info", category="data"),
        _finding("PD800", severity="info", category="quality"),
    ]
    found = reversed(ordered)
    use_rules(*(_rule(one.code, lambda session, it=one: it, category=one.category) for one in found))
    assert [finding.code for finding in diagnose(build_session()).findings] == [finding.code for finding in ordered]


def test_findings_of_one_severity_are_ordered_by_certain_gain_when_upper_ends_differ(use_rules):
    def timed(code: str, low: float, high: float) -> Rule:
        gain = Gain(low=low, high=high, basis="", method="timed")
        return _rule(code, lambda _: _finding(code, severity="medium", gain=gain))

    modeled = _finding("PD801", severity="low", gain=Gain(low=1.3, high=9.0, basis=""))
    use_rules(_rule("PD801", lambda _: modeled), timed("PD802", 1.12, 1.9), timed("PD803", 1.15, 1.16))
    assert [finding.code for finding in diagnose(build_session()).findings] == ["PD803", "PD802", "PD801"]


def test_finding_of_low_severity_comes_first_when_it_explains_a_fifth_of_the_time(use_rules):
    much = _finding("PD802", severity="low", gain=Gain(low=1.0, high=1.3, basis="", method="timed"))
    little = _finding("PD801", severity="low", gain=Gain(low=1.05, high=1.06, basis="", method="timed"))
    use_rules(_rule("PD801", lambda _: little), _rule("PD802", lambda _: much))
    assert [finding.code for finding in diagnose(build_session()).findings] == ["PD802", "PD801"]


def test_negligible_certain_gain_does_not_put_a_finding_before_one_that_explains_more(use_rules):
    much = _finding("PD802", severity="low", gain=Gain(low=1.0, high=3.9, basis="", method="timed"))
    little = _finding("PD801", severity="low", gain=Gain(low=1.004, high=1.34, basis="", method="timed"))
    use_rules(_rule("PD801", lambda _: little), _rule("PD802", lambda _: much))
    assert [finding.code for finding in diagnose(build_session()).findings] == ["PD802", "PD801"]


def test_order_of_findings_does_not_depend_on_rule_order(use_rules):
    hours = (Prescription(treatment="", summary="do", safety="exact", effort="hours"),)
    findings = [
        _finding("PD801", severity="low"),
        _finding("PD802", severity="low"),
        _finding("PD803", severity="medium", gain=Gain(low=1.0, high=1.1, basis=""), prescriptions=hours),
        _finding("PD804", severity="low", gain=Gain(low=1.0, high=1.1, basis=""), prescriptions=hours),
    ]
    orders = set()
    for permuted in itertools.permutations(findings):
        use_rules(*(_rule(finding.code, lambda session, it=finding: it) for finding in permuted))
        orders.add(tuple(finding.code for finding in diagnose(build_session()).findings))
    assert orders == {("PD803", "PD804", "PD801", "PD802")}


@pytest.mark.parametrize(
    ("severity", "claimed_s", "order"),
    [
        ("high", 5.0, ["PD107", "PD101"]),
        ("high", 4.9, ["PD101", "PD107"]),
        ("low", 9.0, ["PD101", "PD107"]),
        ("info", 9.0, ["PD101", "PD107"]),
    ],
)
def test_cause_precedes_its_symptom_when_it_explains_most_of_it(use_rules, severity, claimed_s, order):
    symptom = _finding("PD101", severity="high", claims={"data_wait": 10.0}, gain=Gain(low=2, high=3, basis=""))
    cause = _finding("PD107", severity=severity, claims={"data_wait": claimed_s}, gain=Gain(low=1, high=1.1, basis=""))
    use_rules(_rule("PD101", lambda _: symptom), _rule("PD107", lambda _: cause, explains=("PD101",)))
    assert [finding.code for finding in diagnose(build_session()).findings] == order


@pytest.mark.parametrize(
    ("safety", "phase", "severity", "order"),
    [
        ("semantics", "validation", "low", ["PD111", "PD601"]),
        ("semantics", "data_wait", "low", ["PD601", "PD111"]),
        ("semantics", "validation", "info", ["PD601", "PD111"]),
        ("exact", "validation", "low", ["PD601", "PD111"]),
    ],
)
def test_less_certain_cause_precedes_its_symptom_when_only_that_fix_changes_results(
    use_rules, safety, phase, severity, order
):
    less = Prescription(summary="less often", treatment="", effort="one line", safety=safety)
    workers = Prescription(summary="workers", treatment="", effort="one line", safety="exact")
    certain = Gain(low=1.06, high=1.2, basis="", method="timed")
    symptom = _finding("PD601", severity="high", claims={"validation": 10.0}, prescriptions=(less,), gain=certain)
    cause = _finding("PD111", severity=severity, claims={phase: 6.0}, prescriptions=(workers,))
    use_rules(_rule("PD601", lambda _: symptom), _rule("PD111", lambda _: cause, explains=("PD601",)))
    assert [finding.code for finding in diagnose(build_session()).findings] == order


@pytest.mark.parametrize(
    ("claims", "severity", "order"),
    [
        ({"data_wait": 15.0}, "high", ["PD110", "PD508"]),
        ({"data_wait": 14.9}, "high", ["PD508", "PD110"]),  # little more than the symptom itself
        ({"forward": 50.0}, "high", ["PD508", "PD110"]),
        ({"data_wait": 15.0}, "medium", ["PD508", "PD110"]),
    ],
)
def test_symptom_yields_to_a_cause_as_severe_when_that_claims_more_than_the_symptom(use_rules, claims, severity, order):
    gains = {code: Gain(low=low, high=2.0, basis="", method="timed") for code, low in (("PD508", 1.9), ("PD110", 1.2))}
    symptom = _finding("PD508", severity="high", claims={"data_wait": 10.0}, gain=gains["PD508"])
    cause = _finding("PD110", severity=severity, claims=claims, gain=gains["PD110"])
    use_rules(_rule("PD110", lambda _: cause), _rule("PD508", lambda _: symptom, yields_to=("PD110",)))
    assert [finding.code for finding in diagnose(build_session()).findings] == order


@pytest.mark.parametrize(("low", "order"), [(1.1, ["PD330", "PD336"]), (1.05, ["PD336", "PD330"])])
def test_symptom_yields_to_a_less_severe_cause_when_that_saves_half_as_much_for_certain(use_rules, low, order):
    symptom = _finding(
        "PD336", severity="high", claims={"forward": 10.0}, gain=Gain(low=1.2, high=1.9, basis="", method="timed")
    )
    cause = _finding(
        "PD330", severity="low", claims={"forward": 9.0, "backward": 9.0},
        gain=Gain(low=low, high=2.5, basis="", method="replayed"),
    )  # fmt: skip
    use_rules(_rule("PD330", lambda _: cause), _rule("PD336", lambda _: symptom, yields_to=("PD330",)))
    assert [finding.code for finding in diagnose(build_session()).findings] == order


@pytest.mark.parametrize(("severity", "order"), [("high", ["PD327", "PD301"]), ("medium", ["PD301", "PD327"])])
def test_lower_precision_comes_after_other_findings_of_its_severity(use_rules, severity, order):
    bf16 = _finding("PD301", severity="high", gain=Gain(low=1.5, high=2.0, basis="", method="replayed"))
    constant = _finding("PD327", severity=severity, gain=Gain(low=1.3, high=1.4, basis="", method="replayed"))
    use_rules(_rule("PD301", lambda _: bf16, lowers_precision=True), _rule("PD327", lambda _: constant))
    assert [finding.code for finding in diagnose(build_session()).findings] == order


@pytest.mark.parametrize(("share", "order"), [(0.4, ["PD309", "PD301"]), (0.2, ["PD301", "PD309"])])
def test_cause_precedes_its_symptom_when_neither_was_measured(use_rules, share, order):
    symptom = _finding("PD301", confidence="low", evidence=(fact(AT_STAKE, 0.6, "fraction"),))
    cause = _finding("PD309", confidence="low", evidence=(fact(AT_STAKE, share, "fraction"),))
    use_rules(_rule("PD301", lambda _: symptom), _rule("PD309", lambda _: cause, explains=("PD301",)))
    assert [finding.code for finding in diagnose(build_session()).findings] == order


@pytest.mark.parametrize(("high", "order"), [(1.05, ["PD301", "PD201"]), (1.5, ["PD201", "PD301"])])
def test_small_gain_that_is_not_certain_comes_after_an_unmeasured_one(use_rules, high, order):
    unmeasured = _finding("PD301", evidence=(fact(AT_STAKE, 0.2, "fraction"),))
    small = _finding("PD201", gain=Gain(low=1.0, high=high, basis=""), severity=unmeasured.severity)
    use_rules(_rule("PD301", lambda _: unmeasured), _rule("PD201", lambda _: small))
    assert [finding.code for finding in diagnose(build_session()).findings] == order


def test_unmeasured_findings_are_ordered_by_the_time_they_act_on_when_nothing_else_differs(use_rules):
    shares = {"PD301": 0.2, "PD305": 0.5, "PD306": 0.3}
    found = {code: _finding(code, evidence=(fact(AT_STAKE, share, "fraction"),)) for code, share in shares.items()}
    use_rules(*(_rule(code, lambda _, it=finding: it) for code, finding in found.items()))
    assert [finding.code for finding in diagnose(build_session()).findings] == ["PD305", "PD306", "PD301"]


def test_alternative_is_ranked_behind_certain_causes_when_its_gain_is_not_certain(use_rules):
    def low(code: str, least: float, **changes: object) -> Rule:
        gain = Gain(low=least, high=2.0, basis="", method="timed")
        claims = {"data_wait" if code.startswith("PD1") else "callbacks": 10.0}
        return _rule(code, lambda _: _finding(code, gain=gain, claims=claims), **changes)

    def order(*rules: Rule) -> list[str]:
        use_rules(*rules)
        return [finding.code for finding in diagnose(build_session()).findings]

    cause = low("PD108", 1.0, explains=("PD101", "PD102"))
    other = _finding("PD602", gain=Gain(low=1.06, high=1.13, basis="", method="timed"), claims={"callbacks": 2.0})
    certain = _rule("PD602", lambda _: other)
    assert order(cause, low("PD101", 1.0), certain, low("PD102", 1.0)) == ["PD108", "PD602", "PD101", "PD102"]
    assert order(low("PD101", 1.0), certain) == ["PD101", "PD602"]


@pytest.mark.parametrize(
    ("high", "changes", "order"),
    [
        (2.5, {}, ["PD107", "PD301", "PD101"]),
        (1.3, {}, ["PD301", "PD107", "PD101"]),  # less than a lower precision can save
        (2.5, {"confidence": "medium"}, ["PD301", "PD107", "PD101"]),
        (2.5, {"confidence": "medium", "of_precision": "medium"}, ["PD107", "PD301", "PD101"]),
        (2.5, {"safety": "semantics"}, ["PD301", "PD107", "PD101"]),
    ],
)
def test_lower_precision_is_ranked_behind_a_cause_of_more_time_than_it_can_save(use_rules, high, changes, order):
    gains = {"PD301": (1.2, 1.4), "PD107": (1.0, high), "PD101": (1.0, high)}
    safety, confidence = changes.get("safety", "exact"), changes.get("confidence", "high")
    found = {
        code: _finding(
            code,
            severity="medium" if low > 1.0 else "low",
            confidence=changes.get("of_precision", "high") if code == "PD301" else confidence,
            gain=Gain(low=low, high=most, basis="", method="timed"),
            claims={"data_wait": 10.0} if code != "PD301" else {"forward": 5.0},
            prescriptions=(fix("do it", "minutes", "numerics" if code == "PD301" else safety),),
        )
        for code, (low, most) in gains.items()
    }
    use_rules(
        _rule("PD301", lambda _: found["PD301"], lowers_precision=True),
        _rule("PD107", lambda _: found["PD107"], explains=("PD101",)),
        _rule("PD101", lambda _: found["PD101"]),
    )
    assert [finding.code for finding in diagnose(build_session()).findings] == order


@pytest.mark.parametrize(
    ("least", "symptoms", "order"),
    [(1.0, 1.08, ["PD101", "PD107"]), (1.05, 1.08, ["PD107", "PD101"]), (1.0, 1.01, ["PD107", "PD101"])],
)
def test_symptom_precedes_its_cause_when_only_the_symptoms_fix_certainly_gains(use_rules, least, symptoms, order):
    cause, symptom = (
        _finding(
            code, severity="low", claims={"data_wait": 10.0}, gain=Gain(low=low, high=2.0, basis="", method="timed")
        )
        for code, low in (("PD107", least), ("PD101", symptoms))
    )
    use_rules(_rule("PD101", lambda _: symptom), _rule("PD107", lambda _: cause, explains=("PD101",)))
    assert [finding.code for finding in diagnose(build_session()).findings] == order


def test_headline_names_the_line_when_a_data_wait_has_no_other_cause():
    line = {"file": "data.py", "line": 23, "function": "load", "entry": "__getitem__", "call": "Image.convert",
            "share": 0.81, "operator_fraction": 0.0, "n_samples": 180}  # fmt: skip
    phase = {"n_samples": 250, "n_effective": 200.0, "share": 0.5, "operator_fraction": 0.0, "lines": [line]}
    profile = {"n_samples": 500, "sampled_s": 1.0, "first_step": 3, "last_step": 1990, "cost_s": 0.02}
    session = diagnose(build_session({**STARVED, "host_profile": {**profile, "phases": {"data_wait": phase}}}))
    place = "load (data.py:23) spends 44 % of the time in Image.convert"
    assert session.verdict.text.startswith(f"54 % of training time is spent waiting for data; {place}: ")


@pytest.mark.parametrize(("stage", "text"), [("fit", "of training time is"), ("predict", "of the time is")])
def test_time_is_called_training_time_when_the_stage_is_fit(use_rules, stage, text):
    use_rules(_rule("PD101", lambda session: _finding(summary="Half of training time is spent.")))
    session = build_session()
    run = msgspec.structs.replace(session.run, stage=stage)
    (found,) = diagnose(msgspec.structs.replace(session, run=run)).findings
    assert text in found.summary


def test_confidence_is_lowered_when_the_measurement_is_unreliable():
    def confidence(**changes: object) -> str:
        session = diagnose(build_session({**STARVED, **changes}))
        return next(finding.confidence for finding in session.findings if finding.code == "PD101")

    assert confidence() == "high"
    assert confidence(n_steps=20) == "medium"
    assert confidence(steady={"is_steady": False}) == "medium"
    assert confidence(n_steps=20, steady={"is_steady": False}) == "low"


def test_certain_gain_and_severity_are_lowered_when_the_measurement_is_unreliable(use_rules):
    sure = _finding("PD101", severity="high", gain=Gain(low=1.3, high=3, basis="", method="timed"))
    doubt = _rule("PD902", lambda _: _finding("PD902"), weakens=lambda _: True, category="quality")
    use_rules(_rule("PD101", lambda _: sure), doubt)
    found = next(one for one in diagnose(build_session()).findings if one.code == "PD101")
    assert (found.gain.low, found.gain.high, found.confidence) == (1.15, 3, "medium")
    assert found.severity == "medium"  # 1.15x is certain now


def test_confidence_is_lowered_when_the_quality_rule_is_not_selected():
    session = diagnose(build_session({**STARVED, "n_steps": 20}), select=["PD101"])
    assert [(finding.code, finding.confidence) for finding in session.findings] == [("PD101", "medium")]


def test_confidence_stays_when_the_finding_claims_no_time():
    optimizer = {"class_name": "SGD", "implementation": "foreach", "n_tensors": 9, "n_elements": 9,
                 "steps_without_zero_grad": 19, "n_steps_watched": 20}  # fmt: skip
    session = diagnose(build_session({"n_steps": 20, "settings": {"model": {"optimizers": [optimizer]}}}))
    assert next(f.confidence for f in session.findings if f.code == "PD510") == "high"


def test_verdict_names_the_fix_and_the_gain_when_something_is_wrong():
    verdict = diagnose(build_session(STARVED)).verdict
    assert (verdict.category, verdict.code) == ("data", "PD101")
    assert verdict.text == (
        "54 % of training time is spent waiting for data: set num_workers=2 (now 0) on the train loader"
        " (up to 2.2x, not measured)"
    )


def test_verdict_is_healthy_when_there_is_only_info():
    session = diagnose(build_session({"steady": {"is_steady": False}}))
    assert {finding.severity for finding in session.findings} == {"info"}
    assert (session.verdict.category, session.verdict.code) == ("healthy", None)
    assert session.verdict.text == "healthy: no change found that would save 2 % or more of the time"


@pytest.mark.parametrize(
    ("stage", "n_steps", "text"), [("fit", 1, "1 step in"), ("fit", 2, "2 steps in"), ("test", 2, "2 batches in")]
)
def test_verdict_counts_steps_or_batches_when_too_few_were_measured(stage, n_steps, text):
    verdict = diagnose(build_session({"n_steps": n_steps, "run": {"stage": stage}})).verdict
    assert f"too little was measured ({text} the steady state" in verdict.text


def test_verdict_states_the_number_of_rules_when_some_were_ignored():
    verdict = diagnose(build_session(STARVED), ignore=["PD1"]).verdict
    assert verdict.category == "healthy"
    assert "selected rules" in verdict.text
    assert "by the 1 selected rule that" in diagnose(build_session(), select=["PD601"]).verdict.text


@pytest.mark.parametrize(
    "changes", [{"steady": None}, {"n_steps": 4}, {"steady": None, "missing": {"steady": "it failed"}}]
)
def test_verdict_is_unknown_when_too_little_was_measured(changes):
    verdict = diagnose(build_session({**STARVED, **changes})).verdict
    assert (verdict.category, verdict.code) == ("unknown", None)
    assert changes.get("missing", {}).get("steady", "") in verdict.text


def test_verdict_is_unknown_when_no_rule_has_a_result():
    assert diagnose(build_session(), select=["PD907"]).verdict.category == "unknown"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.7, 2.1, "expect 1.7–2.1x"),
        (1.0, 1.3, "expect up to 1.30x"),
        (1.1, 1.25, "expect 1.10–1.25x"),
        (2.01, 2.02, "expect 2.0–2.1x"),
        (1.5, 12.0, "expect 1.5–12x"),
    ],
)
def test_expectation_has_the_right_words_when_printed(low, high, text):
    assert expectation(Gain(low=low, high=high, basis="", method="timed")) == text


@pytest.mark.parametrize(
    ("treatment", "safety", "command", "flags"),
    [
        ("compile", "numerics", "lightning-perf trial --try compile -- python train.py", {}),
        ("anomaly-off", "exact", "lightning-perf trial --try anomaly-off -- python train.py", {"flag": 1}),
        ("", "numerics", "lightning-perf compare BEFORE AFTER", {}),
    ],
)
def test_finding_has_the_command_that_measures_when_its_speedup_is_modeled(
    use_rules, treatment, safety, command, flags
):
    fix = Prescription(treatment=treatment, summary="Do", safety=safety, effort="minutes", trainer_flags={"flag": 1})
    modeled = Gain(low=1.2, high=1.8, basis="")
    said = _finding("PD303", severity="low", summary="Slow.", gain=modeled, prescriptions=(fix,))
    use_rules(_rule("PD303", lambda _: said))
    session = diagnose(build_session())
    (found,) = session.findings
    assert f"The speedup was not measured; measure it: {command}" in found.summary
    assert found.prescriptions[0].trainer_flags == flags
    assert session.verdict.text == "Slow: Do (up to 1.8x, not measured)"


def test_finding_has_no_command_that_measures_when_part_of_its_gain_is_certain(use_rules):
    use_rules(_rule("PD504", lambda _: _finding("PD504", gain=Gain(low=1.2, high=1.8, basis="", method="timed"))))
    assert "not measured" not in diagnose(build_session()).findings[0].summary


# Faults of the demo: the verdict has to name each of them.
PLANTED = {
    "slow transform": ("PD101", {"step_ms": 30, "shares": {"data_wait": 0.6}, "machine": {"usable_cores": 2.0},
                                 "loader": {"num_workers": 0, "persistent_workers": False}}),
    "no persistent workers": ("PD104", {
        "shares": {"epoch_boundary": 0.3}, "loader": {"persistent_workers": False},
        "steady": {"fetch": {"first_s": [4.5, 4.5]}}}),
    "logging every step": ("PD502", {
        "step_ms": 4, "shares": {"logging": 0.2}, "settings": {"trainer": {"log_every_n_steps": 1}},
        "steady": {"named": [
            {"name": "CSVLogger", "kind": "logger", "hook": "log_metrics", "phase": "logging", "total_s": 0.5,
             "share": 0.12, "n_calls": 1000}]}}),
    "slow logger": ("PD505", {
        "shares": {"logging": 0.2}, "settings": {"trainer": {"log_every_n_steps": 1}},
        "steady": {"named": [
            {"name": "CSVLogger", "kind": "logger", "hook": "save", "phase": "logging", "total_s": 5.0,
             "share": 0.18, "n_calls": 100}]}}),
    "slow callback": ("PD504", {
        "shares": {"callbacks": 0.3},
        "steady": {
            "named": [{"name": "Sharpness", "kind": "callback", "hook": "on_train_batch_end", "phase": "callbacks",
                       "total_s": 6.0, "share": 0.28, "n_calls": 1000}],
            "outliers": {"n": 100, "excess_s": 5.5, "share": 0.27, "threshold_s": 0.06,
                         "excess_by_phase_s": {"callbacks": 5.5}}}}),
    "heavy validation": ("PD601", {"shares": {"validation": 0.6}}),
    "frequent checkpoints": ("PD602", {"shares": {"checkpoint": 0.3}}),
}  # fmt: skip


@pytest.mark.parametrize(("code", "description"), PLANTED.values(), ids=[name.replace(" ", "-") for name in PLANTED])
def test_verdict_names_the_fault_when_one_is_planted(code, description):
    session = diagnose(build_session(description))
    assert session.verdict.code == code, session.verdict
    assert not [outcome for outcome in session.outcomes if outcome.status == "failed"]


def test_rules_load_neither_torch_nor_lightning_when_imported():
    script = (
        "import sys; from lightning_perf.rules.engine import all_rules; all_rules(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'lightning', 'pytorch_lightning')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


SLOW_STEPS = {"n": 20, "excess_s": 2.0, "share": 0.1, "threshold_s": 0.06, "excess_by_phase_s": {"callbacks": 2.0}}


@pytest.mark.parametrize(("share", "is_reported"), [(0.0, True), (0.03, True), (0.1, False)])
def test_slow_steps_are_dropped_when_other_findings_claim_their_time(share: float, is_reported: bool) -> None:
    named = [{"name": "Dumps", "kind": "callback", "hook": "on_train_batch_end", "phase": "callbacks", "total_s": 1.0,
              "share": share, "n_calls": 1000}]  # fmt: skip
    session = diagnose(
        build_session({"shares": {"callbacks": 0.12}, "steady": {"outliers": SLOW_STEPS, "named": named}})
    )
    assert ("PD606" in {finding.code for finding in session.findings}) == is_reported
    outcome = next(one for one in session.outcomes if one.code == "PD606")
    assert outcome.reason == ("" if is_reported else "explained by PD504")


def test_finding_names_the_ranks_when_other_ranks_do_not_have_it(use_rules):
    use_rules(_rule("PD801", lambda session: _finding("PD801"), name="hot", category="system"))
    parts = [[1, 10, 1]] * 4
    session = build_session({"rank_parts_ms": parts, "rank_facts": {2: {"found": ["PD801 hot"]}}})
    (finding,) = diagnose(session).findings
    assert finding.evidence[-1] == Evidence(metric="on ranks", value="0, 2 of 4")
    everywhere = {rank: {"found": ["PD801 hot"]} for rank in range(1, 4)}
    (finding,) = diagnose(build_session({"rank_parts_ms": parts, "rank_facts": everywhere})).findings
    assert len(finding.evidence) == 1
    (finding,) = diagnose(build_session({"rank_parts_ms": parts})).findings  # no rank reported its findings
    assert len(finding.evidence) == 1


def test_slow_scheduler_recommends_a_longer_schedule_when_every_step_is_recorded():
    session = diagnose(build_session({"shares": {"scheduler": 0.5}}))
    code = next(finding for finding in session.findings if finding.code == "PD512").prescriptions[0].code
    made = []
    names = {"n_steps": 5, "rate": float, "optimizer": None, "LambdaLR": lambda _, rate: made.append(rate)}
    exec(code, names)
    assert [made[0](step) for step in range(6)] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]  # LambdaLR starts with step 0


@pytest.mark.parametrize(
    ("severity", "gain", "evidence", "expected"),
    [
        ("medium", Gain(low=1.1, high=1.2, basis="", method="timed"), (), True),
        ("low", Gain(low=1.0, high=1.2, basis="", method="timed"), (), False),
        ("low", Gain(low=1.0, high=1.2, basis="", method="probed"), (), False),
        ("low", Gain(low=1.0, high=1.2, basis="", method="replayed"), (), True),
        ("low", Gain(low=1.1, high=1.2, basis="", method="modeled"), (), False),
        ("info", Gain(low=1.0, high=1.01, basis="", method="modeled"), (), True),
        ("low", None, (Evidence(metric=WHY_NOT_MEASURED, value="not replayed"),), False),
        ("high", None, (), True),
    ],
)
def test_finding_is_measured_when_a_part_of_its_gain_is_certain(severity, gain, evidence, expected):
    assert is_measured(_finding("PD801", severity=severity, gain=gain, evidence=evidence)) is expected


HANG = {"n_steps": 1, "phase": "forward", "quiet_s": 400, "limit_s": 300}


OOM = {"memory": {"oom": {"where": "device", "error": "", "step": 0}}}


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"steady": None, "hangs": [HANG]}, "PD609"), ({"steady": None, **OOM}, "PD408"), ({**STARVED, **OOM}, "PD408")],
)
def test_verdict_is_what_ended_the_run(changes: dict[str, Any], code: str) -> None:
    assert diagnose(build_session(changes)).verdict.code == code
