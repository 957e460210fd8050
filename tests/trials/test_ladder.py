"""Strategy of a trial: the next runs, and which treatments are kept or left out."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.records import ArmRun, Gain
from lightning_perf.trials.judge import judge
from lightning_perf.trials.ladder import best, ladder, next_runs, runs_left
from lightning_perf.trials.rounds import Candidate, Plan, PlannedRun, arm_id
from trials.runs import LOSSES, Lab, run


def names(plan: Plan, runs: list) -> list[str]:  # type: ignore[type-arg]
    return [planned.arm for planned in next_runs(plan, runs)]


def test_batch_search_without_treatments_begins_with_only_the_a_a_pair() -> None:
    plan = Plan(finds_batch=True)
    assert names(plan, []) == ["baseline", "baseline-again"]
    assert names(plan, [run("baseline")]) == ["baseline-again"]
    assert names(plan, [run("baseline"), run("baseline-again", position=1)]) == ["batch-size=x2"]
    assert runs_left(plan, [run("baseline")]) == 1


def test_trial_ends_when_the_diagnosis_recommends_nothing() -> None:
    assert names(Plan(), []) == []


def test_rounds_are_mirrored_and_begin_with_the_pair() -> None:
    lab = Lab({"a": 1.0, "b": 1.0}, noise=0.0)
    assert names(lab.plan, []) == ["baseline", "baseline-again", "a", "b"]
    lab.runs = [lab.make(planned) for planned in next_runs(lab.plan, [])]
    assert names(lab.plan, lab.runs) == ["b", "a", "baseline-again", "baseline"]
    assert [planned.position for planned in next_runs(lab.plan, lab.runs)] == [4, 5, 6, 7]
    assert {planned.repeat for planned in next_runs(lab.plan, lab.runs)} == {1}


def test_next_runs_are_the_rest_of_the_round_after_each_run() -> None:
    whole, piecewise = Lab({"a": 1.4, "b": 1.0, "c": 1.2}).finish(), Lab({"a": 1.4, "b": 1.0, "c": 1.2})
    while planned := next_runs(piecewise.plan, piecewise.runs):
        piecewise.runs.append(piecewise.make(planned[0]))
    assert [r.arm for r in piecewise.runs] == [r.arm for r in whole.runs]
    assert piecewise.runs == whole.runs


def test_positions_and_file_names_are_unique() -> None:
    lab = Lab({"a": 1.4, "b": 1.1, "c": 1.2}).finish()
    assert [r.position for r in lab.runs] == list(range(len(lab.runs)))
    assert set(Counter((r.arm, r.repeat) for r in lab.runs).values()) == {1}


def test_ladder_of_a_trial_that_ends_early_keeps_the_best_measured_so_far() -> None:
    lab = Lab({"a": 1.5, "b": 2.0, "c": 1.0})
    assert ladder(lab.plan, []) == ()
    for _ in range(2):
        lab.runs += [lab.make(planned) for planned in next_runs(lab.plan, lab.runs)]
    assert next_runs(lab.plan, lab.runs)
    rungs = ladder(lab.plan, lab.runs)
    assert [(rung.added, rung.is_kept) for rung in rungs] == [("", True), ("b", True), ("a", False), ("c", False)]


def test_ladder_adds_improvements_in_order_of_their_speedup() -> None:
    lab = Lab({"small": 1.2, "large": 2.0, "middle": 1.5}).finish()
    rungs = ladder(lab.plan, lab.runs)
    assert [rung.arm for rung in rungs] == ["baseline", "large", "large+middle", "large+middle+small"]
    assert all(rung.is_kept for rung in rungs)
    assert best(rungs) == "large+middle+small"
    top = rungs[-1]
    assert top.speedup is not None
    assert top.step_gain is not None
    assert top.speedup.value == pytest.approx(3.6, rel=0.02)
    assert top.step_gain.value == pytest.approx(1.2, rel=0.02)
    assert rungs[1].step_gain == rungs[1].speedup


def test_each_stage_runs_the_new_arm_the_baseline_and_the_rung_below() -> None:
    lab = Lab({"a": 2.0, "b": 1.5}).finish()
    assert [r.arm for r in lab.runs if r.stage == 1] == ["baseline", "a", "a+b", "a+b", "a", "baseline"]


def test_an_arm_stops_as_soon_as_its_verdict_is_clear() -> None:
    lab = Lab({"fast": 2.0, "slow": 0.5}).finish()
    assert Counter(r.arm for r in lab.runs if r.stage == 0) == dict.fromkeys(
        ("baseline", "baseline-again", "fast", "slow"), 2
    )


def test_arm_gets_more_repeats_only_when_they_would_probably_decide_it() -> None:
    noisy = Lab({"a": 1.0}, noise=0.012).finish()
    assert 3 <= max(Counter(r.arm for r in noisy.runs).values()) <= 6
    capped = Lab({"a": 1.0}, Plan(candidates=(Candidate(treatment="a"),), extra=0), noise=0.012).finish()
    assert max(Counter(r.arm for r in capped.runs).values()) == 3
    once = Lab({"a": 1.0}, Plan(candidates=(Candidate(treatment="a"),), repeats=1)).finish()
    assert len(once.runs) == 3


@pytest.mark.parametrize("lost", ["a", "baseline"])
def test_run_without_steady_state_is_repeated_when_the_verdict_is_open(lost: str) -> None:
    plan = Plan(candidates=(Candidate(treatment="a"),), repeats=3, extra=2)
    levels = {"baseline": (0.1, 0.102, 0.101), "baseline-again": (0.1, 0.1, 0.102), "a": (0.1, 0.06, 0.061)}
    made = [
        run(arm, levels[arm][number], position=3 * number + place, repeat=number)
        for number in range(3)
        for place, arm in enumerate(["baseline", "baseline-again", "a"][:: 1 if number % 2 == 0 else -1])
    ]
    assert names(plan, made) == []  # two more runs would not decide it
    unsteady = [msgspec.structs.replace(r, block_means_s=()) if r.arm == lost and r.repeat == 1 else r for r in made]
    again = names(plan, unsteady)
    assert sorted(again) == ["a", "baseline", "baseline-again"]
    assert names(msgspec.structs.replace(plan, extra=0), unsteady) == []


def test_rung_is_left_out_when_it_adds_no_speedup() -> None:
    lab = Lab({"a": 2.0, "b": 1.5, "c": 1.3})
    lab.pairs[frozenset("ab")] = 1 / 1.5  # both fix the same fault
    rungs = ladder(lab.plan, lab.finish().runs)
    assert [(rung.added, rung.is_kept) for rung in rungs] == [("", True), ("a", True), ("b", False), ("c", True)]
    assert rungs[2].arm == "a+b"
    assert rungs[2].reason.startswith("no speedup")
    assert rungs[3].arm == "a+c"


def test_ineffective_treatment_is_tried_again_when_the_bottleneck_changed() -> None:
    expected = Gain(low=1.0, high=1.5, basis="made up")
    hidden = Candidate(treatment="hidden", predicted=expected)
    lab = Lab({"a": 2.0, "hidden": 1.0}, Plan(candidates=(hidden, Candidate(treatment="a"))))
    lab.pairs[frozenset({"a", "hidden"})] = 1.4
    rungs = ladder(lab.plan, lab.finish().runs)
    assert [(rung.arm, rung.is_kept) for rung in rungs] == [("baseline", True), ("a", True), ("a+hidden", True)]
    assert rungs[2].predicted == expected


def test_ineffective_treatment_is_not_tried_again_when_the_bottleneck_is_the_same() -> None:
    lab = Lab({"a": 1.06, "b": 1.0}).finish()
    rungs = ladder(lab.plan, lab.runs)
    assert [(rung.added, rung.is_kept, rung.reason) for rung in rungs[1:]] == [
        ("a", True, ""), ("b", False, "no speedup alone"),
    ]  # fmt: skip
    assert {r.stage for r in lab.runs} == {0}


def test_a_treatment_that_fails_is_left_out_with_its_error_and_the_others_finish() -> None:
    lab = Lab({"a": 1.5, "broken": 1.0})
    lab.failing["broken"] = "RuntimeError: no such kernel"
    rungs = ladder(lab.plan, lab.finish().runs)
    assert [r.arm for r in lab.runs].count("broken") == 1
    assert (rungs[2].verdict, rungs[2].reason, rungs[2].is_kept) == ("failed", "RuntimeError: no such kernel", False)
    assert best(rungs) == "a"


def test_treatment_that_fails_once_others_are_added_is_left_out() -> None:
    lab = Lab({"a": 2.0, "b": 1.5})
    made = lab.make
    lab.make = lambda planned: (  # type: ignore[method-assign]
        msgspec.structs.replace(made(planned), status="failed", reason="time limit", block_means_s=())
        if (planned.arm, planned.stage) == ("a", 1)
        else made(planned)
    )
    rungs = ladder(lab.plan, lab.finish().runs)
    assert best(rungs) == "b"
    assert [(rung.added, rung.verdict, rung.reason) for rung in rungs[2:]] == [("a", "failed", "time limit")]


def test_failed_combination_is_left_out_and_the_ladder_continues() -> None:
    lab = Lab({"a": 2.0, "b": 1.5, "c": 1.3})
    made = lab.make
    lab.make = lambda planned: (  # type: ignore[method-assign]
        msgspec.structs.replace(made(planned), status="failed", reason="time limit")
        if planned.arm == "a+b"
        else made(planned)
    )
    rungs = ladder(lab.plan, lab.finish().runs)
    assert [(rung.arm, rung.verdict, rung.is_kept) for rung in rungs[2:]] == [
        ("a+b", "failed", False), ("a+c", "improved", True),
    ]  # fmt: skip
    assert rungs[2].reason == "time limit"


def test_trial_ends_when_the_baseline_fails() -> None:
    lab = Lab({"a": 1.5})
    failed = run("baseline", status="failed", reason="ImportError", block_means_s=())
    assert next_runs(lab.plan, [failed]) == ()
    assert ladder(lab.plan, [failed]) == ()
    assert best(()) == "baseline"


def test_trial_continues_when_one_run_of_the_baseline_is_lost() -> None:
    lab = Lab({"a": 1.5})
    first = [lab.make(planned) for planned in next_runs(lab.plan, [])]
    lab.runs = [first[0], msgspec.structs.replace(first[1], status="failed", block_means_s=()), first[2]]
    rungs = ladder(lab.plan, lab.finish().runs)
    assert best(rungs) == "a"


def test_treatments_that_conflict_are_not_combined() -> None:
    candidates = (
        Candidate(treatment="workers=2"),
        Candidate(treatment="workers=4"),
        Candidate(treatment="fp16", conflicts=("clip",)),
        Candidate(treatment="clip=1"),
    )
    lab = Lab({"workers=2": 1.5, "workers=4": 2.0, "fp16": 1.4, "clip=1": 1.2}, Plan(candidates=candidates)).finish()
    rungs = ladder(lab.plan, lab.runs)
    assert best(rungs) == "workers=4+fp16"
    left_out = {rung.added: rung.reason for rung in rungs if not rung.is_kept}
    assert left_out == {
        "workers=2": "cannot be combined with workers=4", "clip=1": "cannot be combined with fp16",
    }  # fmt: skip


def test_semantics_treatments_are_not_combined_unless_named() -> None:
    candidates = (Candidate(treatment="batch-size=64", safety="semantics"), Candidate(treatment="a"))
    lab = Lab({"batch-size=64": 2.0, "a": 1.5}, Plan(candidates=candidates)).finish()
    rungs = ladder(lab.plan, [msgspec.structs.replace(r, samples_per_step=64.0) for r in lab.runs])
    assert [(rung.added, rung.is_kept) for rung in rungs] == [("", True), ("a", True), ("batch-size=64", False)]
    assert "changes the training itself" in rungs[2].reason
    asked = msgspec.structs.replace(lab.plan, allow=("exact", "numerics", "semantics"))
    assert (
        ladder(asked, [msgspec.structs.replace(r, samples_per_step=64.0) for r in lab.runs])[1].arm == "batch-size=64"
    )


@pytest.mark.parametrize(
    ("planned", "kept", "says"),
    [
        (None, "compile+a", ""),
        (10_000, "compile+a", ""),  # 1000 s become 500 s
        (150, "a+compile", ""),  # 15 s become 9.5 s
        (30, "a", "compiling takes 2.0 s: 0.86x over the 30 planned steps, 2.00x per step"),
    ],
)
def test_compiling_has_to_pay_within_the_planned_steps(planned: int | None, kept: str, says: str) -> None:
    plan = Plan(candidates=tuple(Candidate(treatment=name) for name in ("compile", "a")), planned_steps=planned)
    lab = Lab({"compile": 2.0, "a": 1.6}, plan, noise=1e-4)
    made, n = lab.make, iter(range(99))

    def make(planned: PlannedRun) -> ArmRun:
        seconds = (2.0 if next(n) < 6 else 0.1) if "compile" in planned.arm else 0.0  # later from a cache
        return msgspec.structs.replace(made(planned), compile_s=seconds)

    lab.make = make  # type: ignore[method-assign]
    rungs = ladder(lab.plan, lab.finish().runs)
    assert best(rungs) == kept
    assert [rung.reason for rung in rungs if not rung.is_kept] == ([says] if says else [])


def test_compiling_has_to_pay_on_top_of_the_rungs_kept() -> None:
    plan = Plan(candidates=tuple(Candidate(treatment=name) for name in ("a", "compile")), planned_steps=60)
    lab = Lab({"compile": 2.0, "a": 4.0}, plan, noise=1e-4)  # 6 s alone become 3 s + 2 s, on top 1.5 s become 2.75 s
    made = lab.make
    lab.make = lambda p: msgspec.structs.replace(made(p), compile_s=2.0 if "compile" in p.arm else 0.0)  # type: ignore[method-assign]
    rungs = ladder(lab.plan, lab.finish().runs)
    assert best(rungs) == "a"
    assert "0.55x over the 60 planned steps" in rungs[-1].reason


def test_treatment_is_not_kept_when_its_losses_diverge() -> None:
    lab = Lab({"wild": 2.0, "a": 1.5})
    lab.losses["wild"] = tuple(3 * loss for loss in LOSSES)
    rungs = ladder(lab.plan, lab.finish().runs)
    assert best(rungs) == "a"
    assert {rung.added: rung.reason for rung in rungs}["wild"] == "its losses differ from the baseline's"


def test_combination_is_not_kept_when_only_its_losses_diverge() -> None:
    lab = Lab({"a": 2.0, "b": 1.5})
    made, wild = lab.make, {"losses": tuple(3 * loss for loss in LOSSES)}
    lab.make = lambda planned: msgspec.structs.replace(made(planned), **wild if planned.arm == "a+b" else {})  # type: ignore[method-assign]
    rungs = ladder(lab.plan, lab.finish().runs)
    assert best(rungs) == "a"
    assert (rungs[-1].verdict, rungs[-1].loss, rungs[-1].reason) == (
        "improved", "diverged", "its losses differ from the baseline's",
    )  # fmt: skip


def test_nothing_is_combined_when_the_ladder_is_off() -> None:
    lab = Lab({"a": 2.0, "b": 1.5})
    lab.plan = msgspec.structs.replace(lab.plan, has_ladder=False)
    rungs = ladder(lab.plan, lab.finish().runs)
    assert {r.stage for r in lab.runs} == {0}
    assert [(rung.added, rung.is_kept) for rung in rungs] == [("", True), ("a", True), ("b", False)]


def test_runs_left_falls_to_zero_and_is_never_negative() -> None:
    lab = Lab({"a": 2.0, "b": 1.5, "c": 1.0})
    assert runs_left(lab.plan, []) >= 15
    while planned := next_runs(lab.plan, lab.runs):
        assert runs_left(lab.plan, lab.runs) >= len(planned)
        lab.runs.append(lab.make(planned[0]))
    assert runs_left(lab.plan, lab.runs) == 0


def searching(effects: dict[str, float], **others: object) -> Lab:
    plan = Plan(
        candidates=tuple(Candidate(treatment=name) for name in effects),
        finds_batch=True,
        **others,  # type: ignore[arg-type]
    )
    return Lab(effects, plan)


def test_fastest_batch_is_searched_after_the_kept_rungs_and_is_the_last_rung() -> None:
    lab = searching({"a": 1.5}).finish()
    searched = [r.arm for r in lab.runs if r.stage == -1]
    assert searched[:4] == [f"a+batch-size=x{times}" for times in (2, 4, 8, 16)]
    assert len(set(searched)) == len(searched)
    top = ladder(lab.plan, lab.runs)[-1]
    assert (top.added, top.is_kept, top.verdict) == ("batch-size=x16", True, "improved")
    assert top.loss == "not_judged"
    assert top.step_gain is not None
    assert top.step_gain.value == pytest.approx(16 / 8.5, rel=0.02)
    assert all("batch-size" not in arm.id or arm.id == top.arm for arm in judge(lab.runs).arms)


def test_fastest_batch_is_found_below_what_runs_out_of_memory() -> None:
    lab = searching({"a": 1.5})
    lab.largest = 5
    rungs = ladder(lab.plan, lab.finish().runs)
    assert [r.arm for r in lab.runs if r.status == "failed"] == ["a+batch-size=x8", "a+batch-size=x6"]
    assert best(rungs) == "a+batch-size=x4"


def test_batch_size_is_unchanged_when_no_searched_size_is_faster() -> None:
    lab = searching({})
    lab.largest = 1
    lab.finish()
    assert [r.arm for r in lab.runs] == ["baseline", "baseline-again", "batch-size=x2"]
    assert best(ladder(lab.plan, lab.runs)) == "baseline"


def test_fastest_batch_is_not_searched_when_not_requested_or_a_size_is_kept() -> None:
    lab = searching({"a": 1.5})
    lab.plan = msgspec.structs.replace(lab.plan, finds_batch=False)
    assert all("batch-size" not in r.arm for r in lab.finish().runs)
    given = searching({"batch-size=x3": 1.0}).finish()
    assert {r.arm for r in given.runs} == {"baseline", "baseline-again", "batch-size=x3"}
    other = Candidate(treatment="checkpointing-batch=x2", conflicts=("batch-size",))
    kept = Lab({other.treatment: 2.0}, Plan(candidates=(other,), finds_batch=True)).finish()
    assert best(ladder(kept.plan, kept.runs)) == other.treatment
    assert {r.stage for r in kept.runs} == {0}


def test_later_runs_of_the_rung_below_do_not_move_the_batch_size_found() -> None:
    lab = searching({"a": 1.5}).finish()
    before = [r for r in lab.runs if r.stage < 1]
    odd = [run("a", 1e-4, 50 + i, 900 + i, stage=1) for i in range(5)]
    assert {"a+batch-size=x16"} <= {planned.arm for planned in next_runs(lab.plan, [*before, *odd])}


def test_search_of_the_batch_resumes_to_the_same_runs_from_any_point() -> None:
    lab = searching({"a": 1.5}).finish()
    for stop in range(len(lab.runs)):
        planned = next_runs(lab.plan, lab.runs[:stop])[0]
        assert (planned.arm, planned.stage) == (lab.runs[stop].arm, lab.runs[stop].stage)


@given(
    effects=st.lists(st.sampled_from([0.5, 0.98, 1.0, 1.01, 1.1, 1.5, 3.0]), min_size=1, max_size=5),
    noise=st.sampled_from([0.0, 0.003, 0.02]),
    stops=st.integers(0, 60),
)
@settings(max_examples=15, deadline=None)
def test_any_trial_ends_and_resumes_to_the_same_ladder_from_any_point(
    effects: list[float], noise: float, stops: int
) -> None:
    lab = Lab({f"t{i}": effect for i, effect in enumerate(effects)}, noise=noise).finish()
    rungs = ladder(lab.plan, lab.runs)
    assert rungs[0].added == ""
    assert {rung.added for rung in rungs[1:]} == {f"t{i}" for i in range(len(effects))}
    stop = min(stops, len(lab.runs))
    if stop < len(lab.runs):
        planned = next_runs(lab.plan, lab.runs[:stop])[0]
        recorded = lab.runs[stop]
        assert (planned.arm, planned.repeat, planned.stage, planned.position) == (
            recorded.arm, recorded.repeat, recorded.stage, recorded.position,
        )  # fmt: skip
    for rung in rungs:
        assert (rung.reason == "") == rung.is_kept


def test_arm_id_is_the_treatments_joined() -> None:
    assert arm_id(()) == "baseline"
    assert arm_id(("a=1", "b")) == "a=1+b"
