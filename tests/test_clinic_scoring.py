"""Scoring of the clinic, on synthetic results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.records import Evidence, Finding, Gain, Prescription, Session
from lightning_perf.trials.job import Result
from tests.rules.session_builder import build_session

CLINIC = Path(__file__).parents[1] / "benchmarks" / "clinic"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the clinic forks and pins its cases")

sys.path.insert(0, str(CLINIC))
import caps  # noqa: E402
import case as clinic_case  # noqa: E402
import orders  # noqa: E402
import page  # noqa: E402
import results  # noqa: E402
import runs  # noqa: E402
import score  # noqa: E402
from runs import Ended, Order  # noqa: E402

CASE = clinic_case.Case("parses", "fault", Path("parses.py"), "Parses.", ("PD511",), fix={"a": "b"},
                        costly_lines=(clinic_case.CostlyLine("training_step", 12),))  # fmt: skip
HEALTHY = clinic_case.Case("calm", "healthy", Path("calm.py"), "Nothing is wrong.")


def outcome(*said: score.Said, **facts: Any) -> score.Outcome:
    """Return a case whose fault PD504 names by default."""
    return score.Outcome(**{"case": "a", "kind": "fault", "half": "score", "expect": ("PD504",), "said": said, **facts})


def healthy(*said: score.Said, **facts: Any) -> score.Outcome:
    """Return a healthy case with these findings."""
    return outcome(*said, **{"case": "calm", "kind": "healthy", "expect": (), **facts})


def said(code: str = "PD504", low: float | None = 1.2, high: float | None = 2.4, **facts: Any) -> score.Said:
    """A finding of high severity."""
    return score.Said(**{"code": code, "severity": "high", "confidence": "high", "low": low, "high": high, **facts})


def finding(code: str, summary: str = "", *, line: str = "", treatment: str = "", **facts: Any) -> Finding:
    """A finding with a promise of 1.2 to 2.4."""
    evidence = (Evidence(metric=f"time in {line}", value=0.4),) if line else ()
    prescription = Prescription(treatment=treatment, summary="do it", safety="exact", effort="one line")
    return Finding(
        **{"code": code, "name": "a-name", "category": "host", "severity": "high", "summary": summary,
           "evidence": evidence, "gain": Gain(low=1.2, high=2.4, basis="timed", method="timed"),
           "prescriptions": (prescription,), **facts}
    )  # fmt: skip


def diagnosed(case: clinic_case.Case, *findings: Finding) -> Ended:
    """The end of a diagnosed run with these findings."""
    session: Session = msgspec.structs.replace(build_session(None), findings=findings)
    return Ended(Order(case, "run"), session, None, "", 1.0)


def timed(
    case: clinic_case.Case, step_s: float, *, is_fixed: bool, wall_s: float | Sequence[float] = (), **order: Any
) -> Ended:
    """The end of a timed run whose blocks all took so long per step, or whole epochs so long each."""
    walls = tuple(wall_s) if isinstance(wall_s, Sequence) else (wall_s,) * 3
    result = Result(status="ok", block_means_s=(step_s,) * 3, wall_block_means_s=walls)
    return Ended(Order(case, "trial", is_fixed, **order), None, result, "", 1.0)


def section(*outcomes: score.Outcome, cap: str = "none", is_whole: bool = True, **facts: Any) -> results.Section:
    """Results under a cap."""
    return results.Section(**{"cap": cap, "command": "", "minutes": 1.0, "machine": "a CPU", "versions": "torch",
                              "is_whole": is_whole, "outcomes": outcomes, **facts})  # fmt: skip


@pytest.mark.parametrize(
    ("measured", "is_kept", "is_broken", "is_nearly_kept"),
    [(1.2, True, False, False), (2.4, True, False, False), (3.0, False, False, False),
     (1.19, False, True, True), (1.1, False, True, False), (0.8, False, True, False)],
)  # fmt: skip
def test_promise_is_judged_by_its_lower_end(
    measured: float, is_kept: bool, is_broken: bool, is_nearly_kept: bool
) -> None:
    promise = score.Promise(1.2, 2.4, measured)
    assert (promise.is_kept, promise.is_broken, promise.is_nearly_kept) == (is_kept, is_broken, is_nearly_kept)


def test_promise_is_broken_when_the_fix_slows_a_training_that_was_promised_nothing() -> None:
    assert score.Promise(1.0, 2.0, 0.97).is_broken
    assert not score.Promise(1.0, 2.0, 1.0).is_broken


def test_score_counts_promises_kept_broken_and_slower() -> None:
    outcomes = [outcome(said(), measured=value) for value in (1.5, 1.19, 1.05, 0.7, 3.0)]
    sums = score.score([*outcomes, outcome(said()), outcome(said(low=None, high=None), measured=2.0)])
    assert (sums.kept.n, sums.kept.of) == (1, 5)
    assert (sums.broken.n, sums.broken.of) == (3, 5)
    assert (sums.nearly, sums.slower) == (1, 1)


def test_score_gives_median_width_of_promises_of_the_cause() -> None:
    wrong = said("PD301", low=1.0, high=9.0)
    sums = score.score([outcome(said(high=1.2)), outcome(wrong, said()), outcome(said(high=4.8)), outcome(wrong)])
    assert sums.width == pytest.approx(2.0)
    assert score.score([healthy(wrong)]).width is None


def test_score_counts_rank_of_both_faults() -> None:
    two = outcome(said("PD101"), said(), second="PD101", kind="double")
    sums = score.score([two, outcome(said()), outcome(said("PD301")), outcome(error="it ended with 1")])
    assert (sums.first.n, sums.among_three.n, sums.first.of) == (1, 2, 4)
    assert (sums.second.n, sums.second.of) == (1, 1)


@pytest.mark.parametrize(
    ("low", "measured", "is_alarm"),
    [(1.2, 1.3, False), (1.2, 1.1, True), (1.2, None, True), (1.0, 1.01, True), (1.0, 1.05, False), (None, 1.5, False)],
)
def test_accusation_is_false_when_its_fix_gains_too_little(
    low: float | None, measured: float | None, is_alarm: bool
) -> None:
    one = healthy(said("PD301", low=low), applied=(score.Applied("PD301", ("precision-bf16",), measured),))
    assert one.alarms == (("PD301",) if is_alarm else ())
    sums = score.score([one])
    assert (sums.accused.n, sums.upheld) == ((1, 0) if is_alarm else (0, 1))


@pytest.mark.parametrize(
    ("facts", "other", "rank"),
    [
        ({}, {}, 1),
        ({}, {"severity": "low"}, 2),  # nothing is certain
        ({"also": ()}, {}, 2),
        ({"has_line": True}, {}, 2),
        ({"has_line": True}, {"names_line": True}, 1),
        ({"has_line": True, "second": "PD101"}, {}, 1),
        ({"expect": ("PD107",)}, {}, None),  # the expected one is not among the first three
        ({"expect": ("PD107",), "has_line": True}, {"names_line": True}, 1),
    ],
)
def test_other_answer_is_right_when_its_gain_is_certain(
    facts: dict[str, Any], other: dict[str, Any], rank: int | None
) -> None:
    one = outcome(said("PD101", **other), said("PD504", severity="low"), **{"also": ("PD101",), **facts})
    assert one.rank == rank


def test_promise_of_another_right_answer_is_judged_by_its_own_fix() -> None:
    applied = (score.Applied("PD101", ("loader-workers=2",), 1.5),)
    one = outcome(said("PD101"), said("PD504"), also=("PD101",), measured=9.0, applied=applied)
    assert one.promises == (score.Promise(1.2, 2.4, 1.5),)
    assert msgspec.structs.replace(one, applied=()).promises == ()


def test_accusation_is_false_when_nothing_can_be_applied() -> None:
    assert healthy(said()).alarms == ("PD504",)


def test_accusation_is_false_when_only_another_finding_gains() -> None:
    applied = (score.Applied("PD318", ("threads=2",), 1.9),)
    assert healthy(said("PD301"), said("PD318"), applied=applied).alarms == ("PD301",)


def test_hint_names_no_cause_when_severity_is_low() -> None:
    one = healthy(said(severity="low"))
    assert one.alarms == ()
    assert score.score([one]).upheld == 0


def test_healthy_run_counts_as_accused_when_it_has_no_diagnosis() -> None:
    assert score.score([healthy(error="it ended with 1")]).accused.n == 1


def test_promise_to_a_healthy_training_is_broken_when_its_fix_gains_less() -> None:
    one = healthy(said("PD301", low=1.5), applied=(score.Applied("PD301", ("precision-bf16",), 0.7),))
    sums = score.score([one])
    assert (sums.broken.n, sums.broken.of, sums.slower) == (1, 1, 1)


@pytest.mark.parametrize(
    ("findings", "is_named"),
    [
        ([finding("PD511", "training_step (parses.py:12) spends 40 % of the step.")], True),
        ([finding("PD504", "One hook.", line="training_step (clinic-x/parses.py:12)")], True),
        ([finding("PD511", "training_step (parses.py:121) spends 40 % of the step.")], False),
        ([finding("PD511", "training_step (other_parses.py:12) spends 40 % of the step.")], False),
        ([finding("PD318", "One thread."), finding("PD511", "training_step (parses.py:12).")], False),
        ([], False),
    ],
)
def test_line_is_named_when_the_first_finding_names_it(findings: list[Finding], is_named: bool) -> None:
    assert score.outcome_of(CASE, diagnosed(CASE, *findings), []).is_line_named is is_named


def test_line_is_not_scored_when_the_case_marks_none() -> None:
    case = CASE._replace(costly_lines=())
    assert score.outcome_of(case, diagnosed(case, finding("PD511")), []).is_line_named is None


def test_outcome_leaves_out_hints_and_the_quality_of_the_measurement() -> None:
    findings = (finding("PD902", category="quality"), finding("PD501", severity="info"), finding("PD511"))
    one = score.outcome_of(CASE, diagnosed(CASE, *findings), [])
    assert [each.code for each in one.said] == ["PD511"]
    assert one.rank == 1
    assert one.predicted == (1.2, 2.4)


def test_fault_counts_as_healthy_when_its_fix_gains_nothing_on_this_cpu() -> None:
    case = CASE._replace(expect=("PD301",), needs="fast-bf16")
    slow, fast = timed(case, 1.0, is_fixed=False), timed(case, 0.5, is_fixed=True)
    end = diagnosed(case, finding("PD301"))
    assert score.outcome_of(case, end, [slow, fast]).rank == 1
    no_gain = score.outcome_of(case, end, [slow, timed(case, 0.95, is_fixed=True)])
    assert no_gain.is_healthy
    assert no_gain.alarms == ("PD301",)
    assert score.outcome_of(CASE, diagnosed(CASE), [slow, timed(CASE, 0.95, is_fixed=True)]).kind == "fault"


def test_measured_gain_compares_whole_epochs_when_both_have_them() -> None:
    old = timed(CASE, 1.0, is_fixed=False, wall_s=3.0)
    assert score.measured_gain([old, timed(CASE, 0.5, is_fixed=True, wall_s=1.0)]) == pytest.approx(3.0)
    assert score.measured_gain([old, timed(CASE, 0.5, is_fixed=True)]) == pytest.approx(2.0)
    assert score.measured_gain([old]) is None


def test_measured_gain_needs_whole_epochs_when_the_fix_acts_between_steps() -> None:
    fix = {"code": "PD601", "treatments": ("val-less-often=4",)}
    old = timed(CASE, 1.0, is_fixed=False, wall_s=3.0, **fix)
    assert score.measured_gain([old, timed(CASE, 1.0, is_fixed=True, wall_s=2.0, **fix)]) == pytest.approx(1.5)
    assert score.measured_gain([old, timed(CASE, 1.0, is_fixed=True, **fix)]) is None


def test_measured_gain_is_that_of_all_epochs_when_only_some_save_a_checkpoint() -> None:
    old = timed(CASE, 1.0, is_fixed=False, wall_s=(4.0, 1.0, 1.0))
    assert score.measured_gain([old, timed(CASE, 1.0, is_fixed=True, wall_s=1.0)]) == pytest.approx(2.0)


def test_script_trains_for_more_epochs_when_whole_epochs_are_timed() -> None:
    assert runs.with_more_epochs("Trainer(max_epochs=4, devices=4)") == "Trainer(max_epochs=16, devices=4)"


def test_fix_of_a_finding_is_measured_apart_from_the_fix_of_the_case() -> None:
    order = {"code": "PD301", "treatments": ("precision-bf16",)}
    ends = [timed(HEALTHY, 1.0, is_fixed=False, **order), timed(HEALTHY, 1.25, is_fixed=True, **order)]
    one = score.outcome_of(HEALTHY, diagnosed(HEALTHY, finding("PD301")), [], ends)
    assert one.applied == (score.Applied("PD301", ("precision-bf16",), pytest.approx(0.8)),)
    assert one.measured is None
    assert one.alarms == ("PD301",)


def test_timed_runs_take_turns() -> None:
    wanted = orders.timings([CASE], 2)
    assert [order.is_fixed for order in wanted] == [False, True, True, False]


def test_own_fix_is_timed_with_the_value_that_the_finding_recommends() -> None:
    case = CASE._replace(expect=("PD601",), fix={}, treatments=("val-less-often=4", "anomaly-off"))
    end = diagnosed(case, finding("PD308", treatment="anomaly-off"), finding("PD601", treatment="val-less-often=7"))
    assert {order.treatments for order in orders.timings([case], 1, [end])} == {("val-less-often=7", "anomaly-off")}
    (before, _) = orders.timings([case], 1)
    assert before.treatments == case.treatments
    assert before.acts_between_steps  # so that both runs have whole periods of validation


def test_fixes_are_timed_once_when_several_runs_recommend_the_same() -> None:
    findings = (finding("PD301", treatment="precision-bf16"), finding("PD504"), finding("PD502", severity="low",
                treatment="log-every-n=50"), finding("PD318", treatment="threads=2"))  # fmt: skip
    ends = [diagnosed(HEALTHY, *findings), diagnosed(HEALTHY, *findings)]
    wanted = orders.fixes(ends, rounds=1)
    assert [(order.code, order.treatments, order.is_fixed) for order in wanted] == [
        ("PD301", ("precision-bf16",), False), ("PD301", ("precision-bf16",), True),
        ("PD318", ("threads=2",), False), ("PD318", ("threads=2",), True),
    ]  # fmt: skip


def test_fix_of_a_faulty_case_is_timed_when_it_is_a_right_answer_too() -> None:
    case = CASE._replace(also=("PD101",))
    end = diagnosed(case, finding("PD101", treatment="loader-workers=2"), finding("PD602", treatment="prog-bar-off"))
    assert {order.code for order in orders.fixes([end], 1)} == {"PD101"}


def test_fix_of_the_true_cause_is_timed_when_it_cures_otherwise_than_the_case() -> None:
    kept = finding("PD107", treatment="dataset-cache", severity="low")
    case = CASE._replace(expect=("PD107",))
    end = diagnosed(case, finding("PD301", treatment="precision-bf16"), kept)
    assert {(order.code, order.treatments) for order in orders.fixes([end], 1)} == {("PD107", ("dataset-cache",))}
    assert not orders.fixes([diagnosed(case._replace(expect=("PD106",)), kept)], 1)
    applied = (score.Applied("PD107", ("dataset-cache",), 1.5),)
    one = outcome(said("PD107"), expect=("PD107",), measured=9.0, applied=applied)
    assert [promise.measured for promise in one.promises] == [1.5]


def test_fix_is_that_of_the_first_recommendation() -> None:
    less = finding("PD602", treatment="async-checkpoint")
    alternative = msgspec.structs.replace(less.prescriptions[0], treatment="")
    changed = msgspec.structs.replace(less, prescriptions=(alternative, *less.prescriptions))
    assert orders.fix_of(less, None) == ("async-checkpoint",)
    assert orders.fix_of(changed, None) == ()


def test_fix_is_none_when_the_treatment_does_not_exist() -> None:
    assert orders.fix_of(finding("PD301", treatment="no-such-thing"), None) == ()


def test_environment_holds_one_cap_alone() -> None:
    inherited = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    none = caps.environment_of("none", inherited, "/cache")
    assert none == {"PATH": "/bin", "XDG_CACHE_HOME": "/cache"}
    capped = caps.environment_of("avx512_core", inherited, "/cache")
    assert capped == {**none, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}


def test_caps_are_refused_when_one_does_not_exist() -> None:
    assert caps.parsed("avx2,none,avx2") == ("avx2", "none")
    with pytest.raises(ValueError, match="got 'avx2,sse', expected caps from none, avx2"):
        caps.parsed("avx2,sse")


def test_results_are_the_same_when_read_again(tmp_path: Path) -> None:
    file = tmp_path / "clinic.json"
    recorded = results.Recorded("a.json", "what", ("PD101",), ("PD101",), "data", 1)
    saved = {"none": section(outcome(said(), measured=1.5), recorded=(recorded,))}
    file.write_bytes(results.encoded(saved))
    assert results.read(file) == saved
    assert results.read(tmp_path / "missing.json") == {}


def test_partial_run_is_not_saved_when_a_run_with_more_is() -> None:
    whole = {"none": section(outcome(case="a", measured=1.5), outcome(case="b"))}
    names = {"a", "b"}
    fewer = section(outcome(case="a", measured=1.5), is_whole=False)
    assert "cases diagnosed more often than this run: b" in results.why_not_saved(whole, fewer, names)
    untimed = section(outcome(case="a"), outcome(case="b"), is_whole=False)
    assert "cases timed more often than this run: a" in results.why_not_saved(whole, untimed, names)
    assert results.why_not_saved(whole, fewer, {"a"}) == ""  # b does not exist any more
    assert results.why_not_saved(whole, section(is_whole=True), names) == ""


def test_partial_run_is_saved_when_its_cap_has_no_results() -> None:
    part = section(outcome(), is_whole=False)
    assert "must be of all cases" in results.why_not_saved({}, part, {"a"})
    assert results.why_not_saved({}, section(outcome(), cap="avx2", is_whole=False), {"a"}) == ""


@pytest.fixture
def pages(tmp_path: Path) -> page.Pages:
    """Pages in a temporary folder."""
    return page.CLINIC._replace(page=tmp_path / "clinic.md", results=tmp_path / "clinic.json")


def test_page_keeps_the_other_caps_when_one_is_saved(pages: page.Pages) -> None:
    names = {"a", "b"}
    assert page.save({"none": section(outcome(said(), case="a"), outcome(said(), case="b"))}, names, pages) == []
    assert (
        page.save({"avx2": section(outcome(said("PD301"), case="a"), cap="avx2", is_whole=False)}, names, pages) == []
    )
    text = pages.page.read_text(encoding="utf-8")
    assert text.count("\n## Cases\n") == 1
    assert "## What went wrong under the cap avx2" in text
    before = pages.results.read_bytes()
    refusals = page.save({"none": section(outcome(said(), case="a"), is_whole=False)}, names, pages)
    assert len(refusals) == 1
    assert pages.results.read_bytes() == before


def test_refused_section_stays_when_another_is_saved(pages: page.Pages) -> None:
    names = {"a", "b"}
    whole = section(outcome(case="a"), outcome(case="b"))
    page.save({"none": whole}, names, pages)
    part = section(outcome(case="a"), is_whole=False)
    under = section(outcome(case="a"), cap="avx2", is_whole=False)
    assert len(page.save({"none": part, "avx2": under}, names, pages)) == 1
    assert results.read(pages.results) == {"none": whole, "avx2": under}


def test_no_page_is_written_when_only_a_cap_was_run(pages: page.Pages) -> None:
    assert page.save({"avx2": section(outcome(), cap="avx2", is_whole=False)}, {"a"}, pages) == []
    assert pages.results.exists()
    assert not pages.page.exists()


def test_page_shows_under_a_cap_only_what_went_wrong() -> None:
    right = outcome(said(), case="right", measured=1.5)
    broken = outcome(said(), case="broken", measured=1.05)
    text = page.text_of({"none": section(right, broken), "avx2": section(right, broken, cap="avx2")})
    assert text.count("| `right` |") == 1
    assert text.count("| `broken` |") == 2
    assert text.count("promise broken |") == 2


def test_page_shows_a_healthy_case_once_when_its_runs_agree() -> None:
    accused = healthy(said("PD301", low=1.5), applied=(score.Applied("PD301", ("precision-bf16",), 0.7),))
    text = page.text_of({"none": section(healthy(), healthy(), accused)})
    assert text.count("| `calm` |") == 2
    assert "(2 runs)" in text
    assert "accused: PD301 promised 1.50, measured 0.70" in text


def test_marked_lines_are_read_with_the_innermost_function(tmp_path: Path) -> None:
    script = tmp_path / "case.py"
    script.write_text(
        '"""A case.\n---\nexpect: PD511\nhalf: score\n"""\n\n\ndef outer():\n    def inner():\n'
        "        work()  # costs time\n\n    return inner\n\n\nouter()()  # costs time\n"
    )
    lines = clinic_case.read(script, "fault").costly_lines
    assert lines == (clinic_case.CostlyLine("inner", 10), clinic_case.CostlyLine("", 15))
