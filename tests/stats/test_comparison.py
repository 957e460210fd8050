from typing import Any

import msgspec
import pytest
from reports.sessions import GIB, starved

from benchmarks.comparison.simulated_sessions import simulated
from lightning_perf.errors import SessionError
from lightning_perf.history.suspects import changes
from lightning_perf.records import (
    Arm,
    Comparison,
    Device,
    DeviceMemory,
    Finding,
    Interval,
    LoaderSettings,
    Machine,
    Memory,
    ModelSettings,
    RuleOutcome,
    Session,
    Settings,
    TrainerSettings,
    Trial,
)
from lightning_perf.stats.comparison import compare_sessions, samples_per_step


def compared(base: Session | list[Session], new: Session | list[Session]) -> Comparison:
    sides = [[("", one) for one in (side if isinstance(side, list) else [side])] for side in (base, new)]
    return compare_sessions(*sides)


def change(comparison: Comparison, name: str = "step") -> str:
    return comparison.time(name).change


def finding(code: str, severity: Any = "high") -> Finding:
    return Finding(code=code, name=f"{code}-name", category="data", severity=severity, summary="It is so.", evidence=())


# -- the promise ------------------------------------------------------------


def test_verdict_is_no_change_in_20_of_20_pairs_of_the_same_training() -> None:
    pairs = [compared(simulated(2 * i), simulated(2 * i + 1)) for i in range(20)]
    assert [change(pair) for pair in pairs] == ["no_change"] * 20
    assert not any(pair.regressions(0.05) for pair in pairs)


def test_a_regression_of_10_percent_is_found_in_19_of_20_pairs() -> None:
    pairs = [compared(simulated(2 * i), simulated(2 * i + 1, slower=1.1)) for i in range(20)]
    assert sum(change(pair) == "slower" for pair in pairs) >= 19
    assert sum(bool(pair.regressions(0.02)) for pair in pairs) >= 19


@pytest.mark.parametrize("noise", [{}, {"phi": 0.9}, {"phi": 0.9, "within": 0.05}, {"n_epochs": 2}])
def test_interval_holds_the_truth_when_steps_resemble_their_neighbors(noise: dict[str, Any]) -> None:
    held = 0
    for i in range(60):
        ratio = compared(simulated(2 * i, **noise), simulated(2 * i + 1, slower=1.1, **noise)).times[0].ratio
        held += ratio.low <= 1.1 <= ratio.high
    assert held >= 52  # three standard errors below 95 %


# -- times ------------------------------------------------------------


def test_the_phase_that_grew_is_first() -> None:
    comparison = compared(simulated(1), simulated(2, slower=3.0, phase="data_wait"))
    assert [one.name for one in comparison.times[:3]] == ["step", "wall", "data_wait"]
    grown = comparison.times[2]
    assert grown.change == "slower"
    assert grown.ratio.value == pytest.approx(3.0, rel=0.1)


def test_what_happens_between_steps_counts_in_wall_alone() -> None:
    comparison = compared(simulated(1), simulated(2, validation_s=6.0))
    assert change(comparison) == "no_change"
    assert change(comparison, "wall") == "slower"
    assert [one.name for one in comparison.regressions(0.1)] == ["wall"]


def test_times_are_of_a_sample_when_batches_differ_in_size() -> None:
    def settings(batch_size: int) -> Settings:
        loader = LoaderSettings(stage="train", index=0, class_name="DataLoader", is_plain=True, batch_size=batch_size)
        return Settings(loaders=(loader,))

    comparison = compared(simulated(1, settings=settings(32)), simulated(2, slower=2.0, settings=settings(64)))
    assert comparison.per == "sample"
    assert change(comparison) == "no_change"
    assert comparison.times[0].base_s == pytest.approx(0.05 / 32, rel=0.1)
    assert any("per sample" in caution for caution in comparison.cautions)


def test_a_phase_that_one_side_lacks_counts_as_no_time() -> None:
    base = simulated(1)
    phases = {name: phase for name, phase in base.steady.phases.items() if name != "validation"}
    found = compared(msgspec.structs.replace(base, steady=msgspec.structs.replace(base.steady, phases=phases)),
                     simulated(2)).time("validation")  # fmt: skip
    assert found.base_s == 0.0
    assert found.ratio is None
    assert "did not occur" in found.reason


def test_times_are_per_sample_when_only_the_second_loader_has_another_batch_size() -> None:
    def with_loaders(seed: int, *sizes: int | None) -> Session:
        loaders = tuple(LoaderSettings(stage="train", index=i, class_name="DataLoader", is_plain=True, batch_size=size)
                        for i, size in enumerate(sizes))  # fmt: skip
        return msgspec.structs.replace(simulated(seed), settings=Settings(trainer=TrainerSettings(), loaders=loaders))

    both = compared(with_loaders(1, 8, 8), with_loaders(2, 8, 24))
    assert both.per == "sample"
    assert both.times[0].ratio.value == pytest.approx(1 / 2, rel=0.05)
    assert compared(with_loaders(1, 8, 8), with_loaders(2, 8, None)).per == "step"


@pytest.mark.parametrize(("sizes", "expected"), [((8, 8), 8), ((8, 24), None), ((8, None), None), ((), None)])
def test_loaders_of_a_validation_are_counted_one_after_the_other(sizes: Any, expected: int | None) -> None:
    loaders = tuple(LoaderSettings(stage="val", index=i, class_name="DataLoader", is_plain=True, batch_size=size)
                    for i, size in enumerate(sizes))  # fmt: skip
    session = simulated(1)
    session = msgspec.structs.replace(
        session,
        run=msgspec.structs.replace(session.run, stage="validate"),
        settings=Settings(trainer=TrainerSettings(), loaders=loaders),
    )
    assert samples_per_step(session) == expected


def test_a_phase_that_one_run_of_a_side_lacks_counts_as_no_time_there() -> None:
    runs = [simulated(seed) for seed in range(4)]
    usual = compared(runs[2], runs[3]).time("validation").base_s
    for i in (0, 1):
        phases = {name: phase for name, phase in runs[i].steady.phases.items() if name != "validation"}
        runs[i] = msgspec.structs.replace(runs[i], steady=msgspec.structs.replace(runs[i].steady, phases=phases))
    found = compared(runs[:3], runs[3]).time("validation")
    assert found.base_s == pytest.approx(usual / 3)
    assert found.ratio is None


def test_samples_per_second_are_those_of_all_ranks_when_their_number_differs() -> None:
    two = msgspec.structs.replace(simulated(2), run=msgspec.structs.replace(simulated(2).run, world_size=2))
    rate = next(one for one in compared(simulated(1), two).figures if one.name == "samples per second")
    assert rate.base == simulated(1).steady.samples_per_s
    assert rate.new == 2 * two.steady.samples_per_s


@pytest.mark.parametrize(("n_first_steps", "epoch_steps", "per_n"), [(40, 2, 2), (0, 1, 1)])
def test_time_between_steps_is_divided_by_each_step_once_when_epochs_are_short(
    n_first_steps: int, epoch_steps: int, per_n: int
) -> None:
    """Epochs of one batch have no other steps, so that these are in ``n_steps``; each has a first fetch."""
    usual = simulated(1, n_epochs=41, steps_an_epoch=2)
    steady = msgspec.structs.replace(
        usual.steady, n_steps=40, n_first_steps=n_first_steps, fetch=msgspec.structs.replace(
            usual.steady.fetch, first_s=(0.1,) * 40), phases={
            "validation": msgspec.structs.replace(usual.steady.phases["validation"], total_s=40.0)},
    )  # fmt: skip
    epochs = tuple(msgspec.structs.replace(one, n_steps=epoch_steps) for one in usual.epochs)
    session = msgspec.structs.replace(usual, steady=steady, epochs=epochs)
    times = compared(session, simulated(2)).time("validation")
    assert times.base_s == pytest.approx(1 / per_n)


def test_reason_is_recorded_when_the_steady_state_was_never_reached() -> None:
    step = compared(simulated(1), msgspec.structs.replace(simulated(2), steady=None)).time("step")
    assert (step.new_s, step.ratio, step.change) == (None, None, "inconclusive")
    assert step.reason == "new: it has no steady steps"


def test_phase_did_not_occur_when_no_step_was_measured() -> None:
    new = msgspec.structs.replace(starved(), run=msgspec.structs.replace(starved().run, id="new"))
    empty = msgspec.structs.replace(new, steady=msgspec.structs.replace(new.steady, n_steps=0))
    assert "did not occur" in compared(starved(), empty).time("forward").reason


def test_there_is_no_interval_when_single_runs_are_too_short() -> None:
    short = [simulated(i, n_epochs=1, steps_an_epoch=20) for i in range(1, 7)]
    step = compared(short[0], short[1]).times[0]
    assert step.ratio is None
    assert "too few steady steps" in step.reason
    assert compared(short[:3], short[3:]).times[0].ratio is not None


def test_noise_is_the_trials_when_one_measured_it() -> None:
    trial = Trial(id="t", command=("x",), status="finished", started_at="", noise_band=0.2,
                  aa=Interval(value=1, low=0.9, high=1.1))  # fmt: skip
    comparison = compared(simulated(1, trials=(trial,)), simulated(2, slower=1.1))
    assert comparison.run_noise_fraction == 0.2
    assert "A/A" in comparison.run_noise_basis
    assert change(comparison) == "inconclusive"


def test_noise_is_what_the_runs_differ_by_when_there_are_several_a_side() -> None:
    base, new = [simulated(i, between=0.0) for i in (1, 2, 3)], [simulated(i, between=0.0) for i in (4, 5, 6)]
    comparison = compared(base, new)
    single = compared(base[0], new[0])
    ratio, wider = comparison.times[0].ratio, single.times[0].ratio
    assert ratio.high / ratio.low < wider.high / wider.low
    assert comparison.run_noise_basis.startswith("not used")


# -- what else differs ------------------------------------------------------------


def test_findings_that_appeared_come_before_those_that_went_and_those_that_stayed() -> None:
    base = simulated(1, findings=(finding("PD101"), finding("PD201")))
    new = simulated(2, findings=(finding("PD201", "low"), finding("PD601", "medium")))
    changes = [(one.code, one.base, one.new) for one in compared(base, new).findings]
    assert changes == [("PD601", None, "medium"), ("PD101", "high", None), ("PD201", "high", "low")]


def test_resolved_finding_differs_from_one_that_was_not_checked() -> None:
    outcomes = (
        RuleOutcome(code="PD101", status="skipped", reason="no loader"),
        RuleOutcome(code="PD201", status="passed"),
    )
    base = simulated(1, findings=(finding("PD101"), finding("PD201")))
    unchecked = {one.code: one.unchecked for one in compared(base, simulated(2, outcomes=outcomes)).findings}
    assert unchecked == {"PD101": "no loader", "PD201": ""}


def test_a_finding_counts_when_half_of_the_runs_have_it() -> None:
    base = [simulated(1, findings=(finding("PD101"), finding("PD201"))), simulated(2, findings=(finding("PD101"),)),
            simulated(3)]  # fmt: skip
    assert [one.code for one in compared(base, simulated(4)).findings] == ["PD101"]


def test_a_loader_that_only_one_run_has_is_one_difference() -> None:
    train, val = (LoaderSettings(stage=each, index=0, class_name="DataLoader", dataset_class="Images", is_plain=True)
                  for each in ("train", "val"))  # fmt: skip
    base, new = (simulated(i, settings=Settings(loaders=each)) for i, each in enumerate([(train,), (train, val)]))
    [only] = compared(base, new).settings
    assert (only.name, only.base, only.new) == ("settings.loaders[1]", None, "val Images")


def test_settings_and_environment_that_differ_are_named_by_their_path() -> None:
    base = simulated(1, settings=Settings(trainer=TrainerSettings(precision="32-true", loggers=("CSVLogger",))))
    machine = Machine(os="Linux", python="3.11", cpu_model="made up", usable_cores=8.0, versions={"torch": "2.13"})
    new = simulated(2, machine=machine, settings=Settings(trainer=TrainerSettings(precision="bf16-mixed")))
    comparison = compared(base, new)
    assert [(one.name, one.base, one.new) for one in comparison.settings] == [
        ("settings.trainer.precision", "32-true", "bf16-mixed"),
        ("settings.trainer.loggers", "CSVLogger", None),
    ]
    assert [(one.name, one.base, one.new) for one in comparison.environment] == [
        ("machine.versions.torch", None, "2.13")
    ]


def test_a_line_that_moved_is_no_setting_that_differs() -> None:
    models = [ModelSettings(class_name="Net", optimizers_site=f"model.py:{n}") for n in (31, 32)]
    base, new = (simulated(n, settings=Settings(model=model)) for n, model in enumerate(models))
    assert compared(base, new).settings == ()
    assert not [each for each in changes(base, new) if "optimizers_site" in each.name]


def test_memory_is_compared_device_by_device() -> None:
    memory = [
        Memory(devices=(DeviceMemory(device="cuda:0", peak_allocated_bytes=n * GIB, peak_reserved_bytes=n * GIB),))
        for n in (1, 2)
    ]
    figures = {one.name: (one.base, one.new) for one in
               compared(simulated(1, memory=memory[0]), simulated(2, memory=memory[1])).figures}  # fmt: skip
    assert figures["cuda:0 peak allocated"] == (GIB, 2 * GIB)


def test_trials_of_both_sides_are_matched_by_treatment() -> None:
    def trial(value: float) -> Trial:
        arm = Arm(id="compile", treatments=("compile",), verdict="improved",
                  speedup=Interval(value=value, low=value - 0.1, high=value + 0.1))  # fmt: skip
        return Trial(id="t", command=("x",), status="finished", started_at="", arms=(Arm(id="baseline"), arm))

    comparison = compared(simulated(1, trials=(trial(1.5),)), simulated(2, trials=(trial(1.2),)))
    [found] = comparison.trials
    assert (found.arm, found.base.value, found.new.value) == ("compile", 1.5, 1.2)
    [found] = compared(simulated(1), simulated(2, trials=(trial(1.2),))).trials
    assert (found.base, found.base_verdict, found.new_verdict) == (None, None, "improved")


def test_cautions_name_what_weakens_the_comparison() -> None:
    other = Machine(os="Linux", python="3.11", usable_cores=8.0, devices=(Device(index=0, name="H100", kind="cuda"),))
    assert any("machines" in one for one in compared(simulated(1), simulated(2, machine=other)).cautions)
    assert compared(simulated(1), simulated(2)).cautions == ()
    failed = simulated(3)
    failed = msgspec.structs.replace(failed, run=msgspec.structs.replace(failed.run, status="interrupted"))
    assert any("did not finish" in one for one in compared(simulated(1), failed).cautions)


# -- bad input ------------------------------------------------------------


def test_error_when_both_sides_are_the_same_run() -> None:
    with pytest.raises(SessionError, match=r"^a, b are the same run"):
        compare_sessions([("a", simulated(1))], [("b", simulated(1))])
    with pytest.raises(SessionError, match=r"^two of the sessions are the same run"):
        compared(simulated(1), simulated(1))


def test_error_when_stages_differ() -> None:
    other = simulated(2)
    other = msgspec.structs.replace(other, run=msgspec.structs.replace(other.run, stage="test"))
    with pytest.raises(SessionError, match="different stages"):
        compared(simulated(1), other)


def test_error_when_a_side_is_empty() -> None:
    with pytest.raises(SessionError, match="each side"):
        compare_sessions([], [("", simulated(1))])


def test_each_time_is_found_by_its_name() -> None:
    comparison = compared(simulated(1), simulated(2))
    assert len(comparison.times) > 2
    assert [comparison.time(one.name) for one in comparison.times] == list(comparison.times)
    assert comparison.time("no such phase") is None


def test_regressions_are_what_grew_by_more_than_asked_for_with_the_whole_interval() -> None:
    comparison = compared(simulated(1), simulated(2, slower=1.5))
    assert {one.name for one in comparison.regressions(0.02)} == {"step", "wall"}
    assert comparison.regressions(1.0) == ()


def test_epochs_without_steps_give_no_time_per_step() -> None:
    base = simulated(1)
    empty = msgspec.structs.replace(base.epochs[-1], n_steps=0)
    new = msgspec.structs.replace(simulated(2), epochs=(*simulated(2).epochs, empty))
    assert compared(base, new).time("wall") == compared(base, simulated(2)).time("wall")


def test_comparison_survives_json() -> None:
    comparison = compared(starved(), simulated(1))
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison
