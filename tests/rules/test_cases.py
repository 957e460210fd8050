"""Every rule checked against its cases, and properties of all rules."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf import rules
from lightning_perf.records import Block, DeviceTimes, Gain, PhaseTime
from lightning_perf.rules.engine import all_rules, diagnose, preflight
from lightning_perf.rules.findings import severity_of, severity_of_gain, timed_finding
from tests.rules.case_files import load_cases

from .session_builder import build_session

CASES = Path(__file__).parent / "cases"
HEADINGS = ["What it measures", "Why it costs", "Example", "Recommendation", "When it is wrong", "Sources"]
CATEGORIES = {"1": "data", "2": "transfer", "3": "compute", "4": "memory", "5": "host", "6": "loop", "7": "distributed",
              "8": "system", "9": "quality"}  # fmt: skip
RULES = {rule.code: rule for rule in all_rules()}


def _load() -> list[Any]:
    params = []
    for path in sorted(CASES.glob("*.yml")):
        for case in load_cases(path):
            params.append(pytest.param(path.stem, case, id=f"{path.stem}-{case['name'].replace(' ', '-')}"))
    return params


@pytest.mark.parametrize(("code", "case"), _load())
def test_rule_result_matches_the_case_when_checked(code, case):
    session = diagnose(build_session(case.get("session")))
    outcome = next(outcome for outcome in session.outcomes if outcome.code == code)
    assert outcome.status == case["expect"], outcome.reason
    if "reason" in case:
        assert case["reason"] in outcome.reason
    if outcome.status != "finding":
        return
    finding = next(finding for finding in session.findings if finding.code == code)
    assert not finding.summary.split(". ")[0].endswith((" e.g", " i.e")), "verdicts end at the first full stop"
    prescription = finding.prescriptions[0] if finding.prescriptions else None
    for key in ("severity", "confidence"):
        assert getattr(finding, key) == case.get(key, getattr(finding, key))
    codes = [each.code for each in session.findings]
    assert all(codes.index(code) < codes.index(later) for later in case.get("before", []))
    if "code" in case:
        assert case["code"] in prescription.code
        assert case["code"] or not prescription.code
    for text in case.get("says", []):
        assert text in f"{finding.summary} {[p.summary for p in finding.prescriptions]}"
    for text in case.get("lacks", []):
        assert text not in f"{finding.summary} {[p.summary for p in finding.prescriptions]}"
    evidence = {each.metric: each.value for each in finding.evidence}
    assert {metric: evidence.get(metric) for metric in case.get("evidence", {})} == case.get("evidence", {})
    for text in case.get("lacks_evidence", []):
        assert not [metric for metric in evidence if text in metric]
    assert (prescription.treatment if prescription else None) == case.get(
        "treatment", prescription.treatment if prescription else None
    )
    for key in ("loader_args", "trainer_flags"):
        if key in case:
            assert getattr(prescription, key) == case[key]
    if "method" in case:
        assert finding.gain is not None
        assert finding.gain.method == case["method"]
    if "basis" in case:
        assert finding.gain is not None
        assert case["basis"] in finding.gain.basis
    if "gain" in case and case["gain"] is None:
        assert finding.gain is None
    elif "gain" in case:
        assert finding.gain is not None
        assert [finding.gain.low, finding.gain.high] == pytest.approx(case["gain"], rel=1e-3)


def test_healthy_session_yields_nothing_above_info_when_diagnosed():
    session = diagnose(build_session())
    assert [finding.code for finding in session.findings] == []
    assert session.verdict.category == "healthy"
    assert [outcome for outcome in session.outcomes if outcome.status == "failed"] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rule_is_complete_when_discovered(rule):
    file = Path(inspect.getfile(sys.modules[rule.check.__module__]))
    assert file.stem == f"{rule.code}_{rule.name}".lower().replace("-", "_")
    assert rule.category == file.parent.name == CATEGORIES[rule.code[2]]
    assert re.findall(r"^## (.+)$", rule.docs, re.M) == HEADINGS
    for section in re.split(r"^## .+$", rule.docs, flags=re.M)[1:]:
        assert section.strip()


@pytest.mark.parametrize("code", RULES)
def test_cases_cover_both_answers_when_a_rule_exists(code):
    cases = load_cases(CASES / f"{code}.yml")
    seen = {case["expect"] for case in cases}
    assert {"finding", "passed"} <= seen
    source = inspect.getsource(sys.modules[RULES[code].check.__module__])
    can_skip = "raise Skip" in source or "steady_of" in source
    assert not can_skip or "skipped" in seen


def test_codes_and_names_are_unique_when_listed():
    files = list(Path(rules.__path__[0]).rglob("pd*.py"))
    assert len(files) == len(RULES) == len(all_rules())
    assert max(Counter(rule.name for rule in all_rules()).values()) == 1


def test_cases_name_existing_rules_when_listed():
    assert {path.stem for path in CASES.glob("*.yml")} == set(RULES)


@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.2, "high"), (0.1999, "medium"), (0.1, "medium"), (0.0999, "low"), (0.02, "low"), (0.0199, "info"), (0, "info")],
)
def test_severity_follows_the_table_when_the_share_is_at_a_threshold(share, severity):
    assert severity_of(share) == severity


@pytest.mark.parametrize(
    ("low", "high", "method", "severity"),
    [
        (1.05, 9.0, "timed", "low"),  # a wide interval: by its lower end
        (1.23, 1.31, "timed", "high"),  # a narrow one: by its middle
        (1.20, 1.40, "timed", "medium"),  # saves 17 to 29 %: by its lower end
        (1.00, 1.40, "timed", "low"),  # close ends, but nothing is certain
        (1.00, 1.01, "timed", "info"),
        (1.30, 9.0, "replayed", "high"),
        (1.30, 1.40, "modeled", "low"),
        (1.00, 1.01, "modeled", "info"),
    ],
)
def test_severity_follows_the_certain_gain_when_a_gain_is_an_interval(low, high, method, severity):
    assert severity_of_gain(Gain(low=low, high=high, basis="", method=method)) == severity


WITHOUT_REST = 1 / (1 - 0.5 - 0.05)  # claimed time and the rest are equal, and a tenth of each is uncertain


@pytest.mark.parametrize(
    ("fast_s", "fastest_s", "mean_s", "has_device", "high"),
    [
        (0.0035, 0.003, 0.004, False, 1 / (1 - 0.55 - 0.1)),  # 1 ms in each of 100 steps
        (0.0035, 0.0019, 0.004, False, 1 / (1 - 0.55 - 0.05)),  # the fastest steps do something else
        (0.003, None, 0.004, False, 1 / (1 - 0.55 - 0.1)),  # an older session
        (None, None, 0.004, False, WITHOUT_REST),  # a still older one
        (0.0019, 0.0019, 0.004, False, WITHOUT_REST),  # many steps do something else
        (0.003, 0.003, None, False, WITHOUT_REST),  # between steps
        (0.003, 0.003, 0.004, True, 2.0),
    ],
)
def test_upper_end_includes_what_the_rest_saves_in_fast_steps_when_it_does_the_same_in_each(
    fast_s, fastest_s, mean_s, has_device, high
):
    phases = {
        "callbacks": PhaseTime(total_s=0.5, share=0.5, p10_s=0.003),  # claimed: must not count twice
        "data_wait": PhaseTime(total_s=0.08, share=0.08, p10_s=0.0006),  # depends on the loader
        "other": PhaseTime(total_s=0.0, share=0.0, p10_s=0.001),  # of a file that someone changed
        # more than 100 means: with first steps
        "forward": PhaseTime(total_s=0.42, share=0.42, p10_s=fast_s, p01_s=fastest_s),
    }
    steady = steady_of_phases(phases, mean_s, has_device)
    finding = saving(steady, 0.5, low_s=0.4)
    assert finding.gain.high == pytest.approx(high)
    assert finding.gain.low == pytest.approx(1 / 0.64)
    assert finding.claims == {"callbacks": 0.5}


@pytest.mark.parametrize(("median_s", "saved_s"), [(0.003, 0.2), (None, 0.1)])
def test_fast_steps_are_compared_with_the_median_when_a_few_steps_are_long(median_s, saved_s):
    phases = {
        "callbacks": PhaseTime(total_s=0.5, share=0.5, p10_s=0.003),
        "forward": PhaseTime(total_s=0.5, share=0.5, p50_s=median_s, p10_s=0.003, p01_s=0.002),
    }
    finding = saving(steady_of_phases(phases, 0.004 + 1e-9, has_device=False), 0.5)
    assert finding.gain.high == pytest.approx(1 / (1 - 0.55 - saved_s), rel=1e-4)


@pytest.mark.parametrize(("claimed_s", "saved_s"), [(0.25, 0.1 / 3), (0.5, 0.1), (0.8, 0.1)])
def test_rest_saves_in_proportion_to_the_claimed_time_when_it_is_longer(claimed_s, saved_s):
    phases = {
        "callbacks": PhaseTime(total_s=claimed_s, share=claimed_s),
        "forward": PhaseTime(total_s=1 - claimed_s, share=1 - claimed_s, p10_s=0.003, p01_s=0.003),
    }
    steady = steady_of_phases(phases, 0.004, has_device=False)
    finding = saving(steady, claimed_s, low_s=claimed_s)
    uncertain_s = 0.1 * min(claimed_s, 1 - claimed_s)
    assert finding.gain.high == pytest.approx(1 / (1 - claimed_s - uncertain_s - saved_s))
    assert finding.gain.low == pytest.approx(1 / (1 - claimed_s + uncertain_s))


def test_only_the_rest_is_uncertain_when_seconds_were_probed():
    phases = {"data_wait": PhaseTime(total_s=0.5, share=0.5, p10_s=0.004)}
    steady = steady_of_phases(phases, 0.004, has_device=False)
    finding = saving(steady, 0.5, phase="data_wait", low_s=0.4, method="probed")
    assert (finding.gain.low, finding.gain.high) == pytest.approx((1 / 0.6, 1 / (0.5 - 0.1 * 0.5)))


def steady_of_phases(phases, mean_s, has_device):
    means = {"callbacks": 0.005, "data_wait": 0.0008, "other": 0.001} | ({"forward": mean_s} if mean_s else {})
    block = Block(first_step=0, n_steps=50, start_s=0.0, step_s=0.01, max_step_s=0.01, phases=means)
    steady = msgspec.structs.replace(
        build_session().steady, n_steps=100, span_s=1.0, own_s=0.0, phases=phases, timeline=(block, block)
    )
    if not has_device:
        return steady
    times = DeviceTimes(n=9, starved_s=0.0, starved_share=0.0, busy_s=1.0, step_s=steady.step_s, backend="cuda")
    return msgspec.structs.replace(steady, device=times)


def saving(steady, claimed_s, *, phase="callbacks", **named):
    return timed_finding(
        steady, summary="", evidence=(), prescriptions=(), claims={phase: claimed_s}, basis="", **named
    )


PREFLIGHT = [
    ("PD314", {"settings": {"model": {"conv_bias_before_norm": ["stem.conv"]}}}, {}),
    ("PD104", {"loader": {"persistent_workers": False}}, {}),
    ("PD315", {"settings": {"model": {"parameters": [{"dtype": "float64", "n_elements": 9, "n_bytes": 72}]}}}, {}),
    ("PD502", {"settings": {"trainer": {"log_every_n_steps": 9}}},
     {"settings": {"trainer": {"log_every_n_steps": 10}}}),
    ("PD502", {"settings": {"trainer": {"log_every_n_steps": 1}}},
     {"settings": {"trainer": {"log_every_n_steps": 1, "loggers": []}}}),
    ("PD503", {"settings": {"trainer": {"is_anomaly_detection_on": True}}}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "sick", "healthy"), PREFLIGHT)
def test_preflight_confidence_is_likely_when_only_settings_are_known(code, sick, healthy):
    (finding,) = preflight(build_session({**sick, "steady": None}))
    assert finding.code == code
    assert finding.is_preflight
    assert finding.confidence == "low"
    assert "likely" in finding.summary or "not measured" in finding.summary
    assert preflight(build_session({**healthy, "steady": None})) == ()


def test_preflight_does_not_say_that_no_parameter_was_unused() -> None:
    settings = {"trainer": {"find_unused_parameters": True}}
    (finding,) = preflight(build_session({"run": {"world_size": 2}, "settings": settings, "steady": None}))
    assert finding.prescriptions[0].summary == (
        "set find_unused_parameters=False on DDP if every parameter gets a gradient in each step"
    )


def test_preflight_reports_no_workers_when_there_is_one_epoch():
    one_epoch = {"loader": {"persistent_workers": False}, "settings": {"trainer": {"max_epochs": 1}}}
    assert preflight(build_session(one_epoch)) == ()
