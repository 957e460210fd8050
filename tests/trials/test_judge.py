"""Verdicts on each arm from the runs of a trial."""

from __future__ import annotations

import msgspec
import pytest

from lightning_perf.records import Gain, Safety
from lightning_perf.trials.judge import compare_arms, judge, rounds_of, treatments_of
from trials.runs import run, stage

STEADY = {"baseline": [0.100, 0.1002, 0.0999], "baseline-again": [0.1001, 0.1, 0.1002]}


def test_arms_are_in_the_order_of_their_first_run() -> None:
    judgement = judge(
        stage({**STEADY, "fast": [0.05, 0.0501, 0.05], "slow": [0.2, 0.201, 0.2], "decoy": [0.1, 0.1001, 0.1001]})
    )
    assert [(arm.id, arm.verdict) for arm in judgement.arms] == [
        ("baseline", "no_change"), ("baseline-again", "no_change"), ("fast", "improved"), ("slow", "regressed"),
        ("decoy", "no_change"),
    ]  # fmt: skip
    assert judgement.noise_band == 0.01
    assert judgement.aa is not None
    assert judgement.aa.value == pytest.approx(1.0, rel=0.01)


def test_arm_has_speedup_step_memory_and_p() -> None:
    peaks = {"peak_host_bytes": 1000}
    runs = stage({**STEADY, "fast": [0.05, 0.0501, 0.05]}, **peaks)
    arm = judge(runs).arm("fast")
    assert arm is not None
    assert arm.speedup is not None
    assert arm.speedup.low < 2.0 < arm.speedup.high
    assert arm.step_s is not None
    assert arm.step_s.value == pytest.approx(0.05, rel=0.01)
    assert arm.p_value == pytest.approx(2 / 84)
    assert arm.peak_bytes == 1000
    assert arm.loss == "identical"
    assert arm.reason == ""
    baseline = judge(runs).arm("baseline")
    assert baseline is not None
    assert baseline.speedup is None
    assert baseline.step_s is not None


def test_peak_is_that_of_the_device_and_none_when_nothing_was_read() -> None:
    runs = [run("baseline", peak_device_bytes=n, peak_host_bytes=9) for n in (10, 30, 20)]
    assert judge(runs).arms[0].peak_bytes == 20
    assert judge([run("baseline")]).arms[0].peak_bytes is None


def test_prediction_is_of_a_single_treatment_and_safety_of_the_least_safe() -> None:
    expected = Gain(low=1.2, high=1.6, basis="made up")
    runs = stage({**STEADY, "a": [0.05] * 3, "a+b": [0.04] * 3})
    safety: dict[str, Safety] = {"a": "exact", "b": "numerics"}
    judgement = judge(runs, {"a": expected}, safety)
    arms = {arm.id: arm for arm in judgement.arms}
    assert (arms["a"].predicted, arms["a"].safety) == (expected, "exact")
    assert (arms["a+b"].predicted, arms["a+b"].safety, arms["a+b"].treatments) == (None, "numerics", ("a", "b"))


def test_arm_is_failed_with_its_reason_when_one_run_failed() -> None:
    runs = stage({**STEADY, "a": [0.05] * 3})
    runs[-1] = msgspec.structs.replace(runs[-1], status="failed", reason="killed: 4 GiB of memory", block_means_s=())
    arm = judge(runs).arm(runs[-1].arm)
    assert arm is not None
    assert (arm.verdict, arm.reason) == ("failed", "killed: 4 GiB of memory")
    assert arm.speedup is None
    assert arm.step_s is None


def test_arm_is_inconclusive_with_a_reason_when_it_has_no_steady_state() -> None:
    reason = "the steady state was not reached: the halves of the run differ"
    runs = stage(STEADY) + [run("a", repeat=i, position=6 + i, block_means_s=(), reason=reason) for i in range(3)]
    arm = judge(runs).arm("a")
    assert arm is not None
    assert (arm.verdict, arm.reason, arm.speedup) == ("inconclusive", reason, None)


def test_a_single_run_without_a_steady_state_is_left_out_and_reported() -> None:
    runs = stage({**STEADY, "a": [0.05] * 3})
    runs[-1] = msgspec.structs.replace(runs[-1], block_means_s=(), steady_from=None)
    arm = judge(runs).arm(runs[-1].arm)
    assert arm is not None
    assert "1 of 3 runs left out: they had no steady state" in arm.reason


def test_everything_is_inconclusive_when_the_baseline_failed() -> None:
    failed = run("baseline", status="failed", reason="boom", block_means_s=())
    judgement = judge([failed, run("a", 0.05, position=1)])
    assert judgement.arms[0].verdict == "failed"
    assert judgement.arms[1].verdict == "inconclusive"
    assert "the baseline failed" in judgement.arms[1].reason


def test_baseline_is_not_failed_when_one_run_of_it_was_lost() -> None:
    runs = stage({**STEADY, "a": [0.05] * 3})
    runs[0] = msgspec.structs.replace(runs[0], status="failed", reason="boom", block_means_s=())
    verdicts = {arm.id: arm.verdict for arm in judge(runs).arms}
    assert (verdicts["baseline"], verdicts["a"]) == ("no_change", "improved")
    assert verdicts["baseline-again"] != "failed"


def test_machine_is_too_noisy_when_the_a_a_pair_differs() -> None:
    arm = judge(stage({"baseline": [0.1, 0.1001, 0.1], "baseline-again": [0.15, 0.1501, 0.15]})).arm("baseline-again")
    assert arm is not None
    assert arm.verdict == "inconclusive"
    assert "the same training differs from itself, so this machine is too noisy" in arm.reason


def test_one_repeat_has_no_interval_and_names_the_number_needed() -> None:
    arm = judge(stage({"baseline": [0.1], "baseline-again": [0.1], "a": [0.05]})).arm("a")
    assert arm is not None
    assert (arm.verdict, arm.speedup, arm.repeats_needed) == ("inconclusive", None, 1)


def test_arms_are_compared_by_samples_when_their_batches_differ() -> None:
    runs = stage(STEADY, samples_per_step=32.0) + [
        run("batch-size=64", 0.15, i, 6 + i, samples_per_step=64.0) for i in range(3)
    ]
    found = compare_arms(runs, ["baseline", "baseline-again"], "batch-size=64", 0.01)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(2 * 0.1 / 0.15, rel=0.01)


def test_arms_are_compared_by_steps_when_only_a_short_last_batch_differs() -> None:
    runs = stage(STEADY, samples_per_step=32.0) + [run("a", 0.1, i, 6 + i, samples_per_step=31.99) for i in range(3)]
    found = compare_arms(runs, ["baseline"], "a", 0.01)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1.0, rel=0.003)


def test_arms_are_compared_by_batches_when_accumulation_differs() -> None:
    runs = stage(STEADY) + [run("accumulate=4", 0.2, i, 6 + i, batches_per_step=4) for i in range(3)]
    found = compare_arms(runs, ["baseline"], "accumulate=4", 0.01)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(2.0, rel=0.01)


def test_compile_time_pays_after_the_steps_that_save_it() -> None:
    runs = stage(STEADY) + [run("compile", 0.025, i, 6 + i, compile_s=[30.0, 2.0, 2.0][i]) for i in range(3)]
    arm = judge(runs).arm("compile")
    assert arm.compile_s == 30.0
    assert arm.pays_after_steps == pytest.approx(400, rel=0.05)
    hardly_faster = stage(STEADY) + [run("compile", 0.0999, i, 6 + i, compile_s=30.0) for i in range(3)]
    assert judge(hardly_faster).arm("compile").pays_after_steps is None
    compiled = [msgspec.structs.replace(r, compile_s=r.compile_s if r.arm == "compile" else 2.0) for r in runs]
    assert judge(compiled).arm("compile").compile_s == 28.0
    about_as_long = [msgspec.structs.replace(r, compile_s=3.0 if r.arm == "compile" else 2.0) for r in runs]
    assert judge(about_as_long).arm("compile").pays_after_steps is None


def test_other_batch_sizes_are_not_compared_when_samples_are_not_known() -> None:
    runs = stage(STEADY) + [run("batch-size=64", 0.15, i, 6 + i) for i in range(3)]
    arm = judge(runs, safety={"batch-size=64": "semantics"}).arm("batch-size=64")
    assert arm is not None
    assert arm.verdict == "inconclusive"
    assert "cannot be compared" in arm.reason
    assert arm.loss == "not_judged"


def test_only_runs_of_the_same_rounds_are_compared() -> None:
    early = stage({"baseline": [0.1, 0.1, 0.1], "baseline-again": [0.1, 0.1, 0.1], "a": [0.05, 0.05]})
    later = [run("baseline", 0.5, 3 + i, 20 + i, stage=1) for i in range(3)]  # the machine has become slower
    found = compare_arms([*early, *later], ["baseline", "baseline-again"], "a", 0.01)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(2.0)


def test_rounds_count_an_arm_s_runs_within_each_stage() -> None:
    runs = [run("a"), run("b"), run("b"), run("a", stage=1), run("a", stage=1)]
    assert rounds_of(runs) == [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1)]


def test_treatments_are_read_from_the_id() -> None:
    assert treatments_of("loader-workers=4+compile") == ("loader-workers=4", "compile")
    assert treatments_of("baseline") == treatments_of("baseline-again") == ()


def test_nothing_is_judged_when_nothing_ran() -> None:
    assert judge([]) == ((), 0.01, None)


def test_other_rounds_are_used_when_too_many_runs_of_the_baseline_were_lost() -> None:
    runs = stage(STEADY) + [run("a+b", 0.05, i, 6 + 2 * i, stage=1) for i in range(3)]
    runs += [run("baseline", repeat=3 + i, position=7 + 2 * i, stage=1, block_means_s=()) for i in range(3)]
    arm = judge(runs).arm("a+b")
    assert arm is not None
    assert arm.verdict == "improved"
