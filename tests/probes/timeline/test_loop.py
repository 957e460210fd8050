from __future__ import annotations

import gc
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint, Timer, TQDMProgressBar
from lightning.pytorch.profilers import PassThroughProfiler

from lightning_perf.probes.telemetry.pauses import GarbagePauses
from lightning_perf.probes.timeline.loop import LoopTimer
from lightning_perf.probes.timeline.spans import OWN, PHASE_INDEX, NullSpan
from lightning_perf.records import PHASES
from tests.fakes import FakeClock


class Other(Callback):
    def on_train_batch_end(self, *_: Any) -> None: ...


class Owner(Callback):
    def on_train_batch_end(self, *_: Any) -> None: ...


class Module(LightningModule):
    def on_train_batch_start(self, *_: Any) -> None: ...

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Data(LightningDataModule):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Connector:
    def update_train_step_metrics(self) -> None: ...


class ValidationLoop:
    """Run the function that a test sets."""

    def __init__(self) -> None:
        self.body: Any = None

    def run(self) -> None:
        self.reset()
        self.body()

    def reset(self) -> None: ...


class Strategy:
    def backward(self) -> None: ...


def unexpected(error: Exception) -> None:
    raise AssertionError from error


class Bench:
    """A loop probe with a fake Trainer and a fake clock."""

    def __init__(self, stage: str = "fit") -> None:
        self.clock = FakeClock()
        self.owner = Owner()
        self.callbacks = [self.owner, Other(), ModelCheckpoint(), TQDMProgressBar()]
        self.validation = ValidationLoop()
        self.trainer: Any = SimpleNamespace(
            world_size=1,
            profiler=PassThroughProfiler(),
            callbacks=self.callbacks,
            loggers=[],
            strategy=Strategy(),
            optimizers=[],
            current_epoch=0,
            global_step=0,
            sanity_checking=False,
            max_epochs=2,
            max_steps=-1,
            num_training_batches=10,
            accumulate_grad_batches=1,
            gradient_clip_val=1.0,
            datamodule=Data(),
            _logger_connector=Connector(),
            fit_loop=SimpleNamespace(
                epoch_loop=SimpleNamespace(val_loop=self.validation, on_run_start=self.make_iterator)
            ),
        )
        self.loop = LoopTimer(self.trainer, Module(), self.owner, stage, self.clock, unexpected)
        self.profiler = self.trainer.profiler
        self.loop.install()

    def make_iterator(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def act(self, action: str, seconds: float) -> None:
        with self.trainer.profiler.profile(action):
            self.clock.advance(seconds)

    def fetch(self, seconds: float, stage: str = "train_dataloader") -> None:
        self.trainer.profiler.start(f"[Loop].{stage}_next")
        self.clock.advance(seconds)
        self.trainer.profiler.stop(f"[Loop].{stage}_next")

    def step(self, forward_s: float = 0.3) -> None:
        self.fetch(0.1)
        self.loop.batch_begins(None)
        self.act("[Strategy]Single.training_step", forward_s)
        self.loop.batch_ends(None)


@pytest.mark.parametrize(
    ("action", "phase"),
    [
        ("[Strategy]SingleDeviceStrategy.batch_to_device", "transfer"),
        ("[Strategy]SingleDeviceStrategy.training_step", "forward"),
        ("[Strategy]DDPStrategy.validation_step", "forward"),
        ("[Strategy]DDPStrategy.backward", "backward"),
        ("[LightningModule]Module.optimizer_step", "optimizer"),
        ("[LightningModule]Module.optimizer_zero_grad", "optimizer"),
        ("[LightningModule]Module.configure_gradient_clipping", "optimizer"),
        ("[LightningModule]Module.lr_scheduler_step", "scheduler"),
        ("optimizer_step", "optimizer"),
        ("save_checkpoint", "checkpoint"),
        ("[LightningModule]Module.on_train_batch_start", "callbacks"),
        ("[LightningModule]Module.on_after_batch_transfer", "transfer"),
        ("[LightningDataModule]Data.on_before_batch_transfer", "transfer"),
        ("[Callback]Other.on_train_batch_end", "callbacks"),
        ("[Callback]Owner.on_train_batch_end", "callbacks"),
        ("[Callback]TQDMProgressBar.on_train_batch_end", "callbacks"),
        ("[_TrainingEpochLoop].train_dataloader_next", "data_wait"),
        ("[_EvaluationLoop].val_next", "data_wait"),
        ("[_PredictionLoop].predict_next", "data_wait"),
    ],
)
def test_action_is_counted_in_its_phase(action: str, phase: str) -> None:
    bench = Bench()
    bench.step()
    bench.act(action, 2.0)
    bench.loop.timeline.charge()
    held = {name: bench.loop.timeline.phase_ns[i] for name, i in PHASE_INDEX.items()}
    held["callbacks"] += bench.loop.timeline.phase_ns[OWN]
    assert held[phase] >= 2e9
    assert sum(ns for name, ns in held.items() if name != phase) <= 0.4e9


@pytest.mark.parametrize(
    "action",
    [
        "run_training_batch",
        "[Callback]Other.on_train_start",
        "[Strategy]SingleDeviceStrategy.on_train_batch_start",
        "[Mine].token_next",
        "anything",
    ],
)
def test_unmeasured_action_counts_for_the_span_around_it(action: str) -> None:
    span = Bench().loop.span_for(action)
    assert isinstance(span, NullSpan)
    with span as name:
        assert (name, type(name)) == (action, str)


def test_saving_callback_is_checkpoint_by_name() -> None:
    bench = Bench()
    key = bench.callbacks[2].state_key
    span = bench.loop.span_for(f"[Callback]{key}.on_train_batch_end")
    assert (span.name, span.kind, PHASES[span.phase]) == ("ModelCheckpoint", "checkpoint_callback", "checkpoint")


def test_names_count_from_the_end_of_the_first_step() -> None:
    bench = Bench()
    for _ in range(4):
        bench.fetch(0.1)
        bench.loop.batch_begins(None)
        bench.act("[Callback]Other.on_train_batch_start", 0.0)
        bench.act("[Callback]Other.on_train_batch_end", 0.5)
        bench.loop.batch_ends(None)
    (named,) = [t for t in bench.loop.named() if t.name == "Other"]
    assert named.n_calls == 3
    assert named.total_s == pytest.approx(1.5)
    assert named.share == pytest.approx(1.5 / 1.8)


def test_shares_of_names_exclude_sampled_and_profiled_steps() -> None:
    bench = Bench()
    main = bench.loop.main
    for number in range(9):
        bench.fetch(0.1)
        bench.loop.batch_begins(None)
        if number in (0, 3):
            main.leave_out()
        if number in (5, 6):
            main.profiling(number == 5)
        bench.act("[Callback]Other.on_train_batch_end", 0.9)
        if number in (0, 3, 5, 6):
            bench.clock.advance(7)
        bench.loop.batch_ends(None)
    main.reporting(True)
    bench.act("[Callback]Other.on_train_batch_end", 0.9)
    main.reporting(False)
    main.leave_out()
    bench.clock.advance(7)
    for _ in range(2):  # asking twice changes nothing
        (named,) = [t for t in bench.loop.named() if t.name == "Other"]
        assert named.n_calls == 9
        assert named.total_s == pytest.approx(9 * 0.9)
        # Of steps 1, 2, 4, 7 and 8. Steps 3 and 5 are left out from where they are observed on: their fetches count.
        assert named.share == pytest.approx(5 * 0.9 / (5 * 0.9 + 7 * 0.1))
        assert bench.loop.included_s() == pytest.approx(5 * 0.9 + 7 * 0.1)


def test_collections_in_steps_left_out_do_not_count() -> None:
    bench = Bench()
    pauses = GarbagePauses.open(SimpleNamespace(loop=bench.loop, now_ns=bench.clock))  # type: ignore[arg-type]
    gc.disable()  # only those that are asked for
    pauses.start()
    try:
        gc.collect()  # in the first step
        bench.step()
        bench.clock.advance(2)
        gc.collect()
        bench.loop.main.leave_out()
        bench.clock.advance(7)
        gc.collect()
    finally:
        pauses.close()
        gc.enable()
    record = pauses.record()
    assert [one.n for one in record.generations] == [1]
    assert record.span_s == pytest.approx(2)


def test_making_an_iterator_is_named_in_the_epoch_boundary_when_an_epoch_begins() -> None:
    bench = Bench()
    bench.step()
    bench.loop.epoch_ends()
    bench.clock.advance(1)
    bench.trainer.fit_loop.epoch_loop.on_run_start(3)
    bench.step()
    (named,) = [time for time in bench.loop.named() if time.hook == "iter"]
    assert (named.name, named.phase, named.total_s, named.n_calls) == ("train_dataloader", "epoch_boundary", 3, 1)
    bench.loop.uninstall()
    assert bench.trainer.fit_loop.epoch_loop.on_run_start == bench.make_iterator


def test_making_an_iterator_is_named_when_a_validation_begins() -> None:
    bench = Bench()
    bench.validation.reset = lambda: bench.clock.advance(4)
    bench.loop.uninstall()
    bench.loop.install()
    bench.validation.body = lambda: bench.clock.advance(1)
    bench.step()
    bench.validation.run()
    bench.step()
    (named,) = [time for time in bench.loop.named() if time.hook == "iter"]
    assert (named.name, named.total_s, named.n_calls) == ("val_dataloader", 4, 1)


def test_validation_is_one_phase_of_training_and_a_stage_of_its_own() -> None:
    bench = Bench()

    def body() -> None:
        bench.clock.advance(1)  # the loop starts
        for _ in range(3):
            bench.fetch(0.2, "val")
            bench.loop.evaluation_begins(None)
            bench.act("[Strategy]Single.validation_step", 0.4)
            bench.loop.validation.batch_ends()
        bench.loop.evaluation_epoch_ends()
        bench.clock.advance(2)  # the loop ends
        bench.act(f"[Callback]{bench.callbacks[2].state_key}.on_validation_end", 5)

    bench.validation.body = body
    bench.step()
    bench.step()
    bench.validation.run()
    bench.step()
    bench.loop.epoch_ends()
    (epoch,) = bench.loop.main.epochs_so_far()
    assert epoch.phases["validation"] == pytest.approx(4.8)
    assert epoch.phases["checkpoint"] == pytest.approx(5)
    assert epoch.phases["forward"] == pytest.approx(0.9)
    assert sum(epoch.phases.values()) == pytest.approx(epoch.wall_s) == pytest.approx(11.0)
    times = bench.loop.validation.stage_times()
    assert times.step_s.p50 == pytest.approx(0.6, rel=0.01)
    assert times.phases["forward"].p50_s == pytest.approx(0.4, rel=0.01)
    assert times.phases.get("other") is None


def test_sanity_check_counts_as_startup() -> None:
    bench = Bench()
    bench.trainer.sanity_checking = True
    bench.validation.body = lambda: bench.clock.advance(3)
    bench.validation.run()
    bench.trainer.sanity_checking = False
    bench.clock.advance(1)
    bench.step()
    assert bench.loop.sanity_ns == 3e9
    assert bench.loop.startup_ns == {"startup": 4 * 10**9}
    assert bench.loop.validation.n_steps == 0


def test_validation_leaves_no_trace_when_it_raises() -> None:
    bench = Bench()

    def body() -> None:
        bench.clock.advance(1)
        raise KeyError

    bench.validation.body = body
    bench.step()
    with pytest.raises(KeyError):
        bench.validation.run()
    timeline = bench.loop.timeline
    assert (timeline.current, timeline.stack) == (timeline.base, [])
    assert timeline.phase_ns is bench.loop.main.phase_ns
    assert timeline.phase_ns[PHASE_INDEX["validation"]] == 1e9


def test_lost_spans_are_left_when_the_next_batch_is_fetched() -> None:
    bench = Bench()
    bench.step()
    bench.fetch(0.1)
    bench.loop.batch_begins(None)
    bench.trainer.profiler.start("optimizer_step")  # raised, and the user's step went on
    bench.clock.advance(1)
    bench.loop.batch_ends(None)
    bench.step()
    bench.clock.advance(7)
    bench.loop.timeline.charge()
    assert bench.loop.main.phase_ns[PHASE_INDEX["other"]] == 7e9


def test_everything_is_put_back_when_uninstalled_even_if_one_undo_raises() -> None:
    bench = Bench()

    def broken() -> None:
        raise OSError

    bench.loop._undos._undos.insert(1, broken)
    assert "run" in vars(bench.validation)
    with pytest.raises(OSError):
        bench.loop.uninstall()
    bench.loop.uninstall()
    assert isinstance(bench.trainer.profiler, PassThroughProfiler)
    assert "run" not in vars(bench.validation)
    assert vars(bench.trainer._logger_connector) == {}


@pytest.mark.parametrize(("hook_s", "timed_ns"), [(19e-6, 0), (20e-6, 1e9)])
def test_only_cheap_callbacks_are_not_timed_any_more_when_it_backs_off(hook_s: float, timed_ns: float) -> None:
    bench = Bench()
    bench.act("[Callback]Other.on_train_batch_end", hook_s)
    bench.loop.back_off()
    bench.loop.main.phase_ns[PHASE_INDEX["callbacks"]] = 0
    bench.act("[Callback]Other.on_train_batch_end", 1)
    bench.act("[Strategy]Single.training_step", 1)
    bench.loop.timeline.charge()
    assert bench.loop.main.phase_ns[PHASE_INDEX["callbacks"]] == timed_ns
    assert bench.loop.main.phase_ns[PHASE_INDEX["forward"]] >= 1e9
    bench.loop.uninstall()
    assert isinstance(bench.trainer.profiler, PassThroughProfiler)


def test_steps_inside_a_window_leave_marks_and_count_in_no_statistic() -> None:
    bench = Bench()
    marks: list[str] = []

    class Mark:
        def __init__(self, phase: str) -> None:
            marks.append(phase)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: Any) -> None: ...

    for i in range(30):
        if i == 10:
            bench.loop.profiling(Mark)
        if i == 13:
            bench.loop.profiling(None)
        bench.step(forward_s=9 if 10 <= i < 13 else 0.3)
    assert marks.count("forward") == 3
    times = bench.loop.main.stage_times()
    assert times.step_s.p99 < 0.5


@pytest.mark.parametrize(("max_epochs", "max_steps", "expected"), [(2, -1, 20), (None, 7, 7), (2, 7, 7), (None, -1, 2)])
def test_expected_wall_time_follows_the_trainers_limits(max_epochs: Any, max_steps: int, expected: int) -> None:
    bench = Bench()
    bench.trainer.max_epochs, bench.trainer.max_steps = max_epochs, max_steps
    bench.step()
    bench.step()
    assert bench.loop.expected_wall_s(step_ns=0.4e9) == pytest.approx(expected * 0.4)


@pytest.mark.parametrize(("max_epochs", "expected_s"), [(None, 1.2 + 5), (1000, 1.2 + 5), (1, 4.0)])
def test_expected_wall_time_is_limited_by_max_time(max_epochs: int | None, expected_s: float) -> None:
    bench = Bench()
    bench.callbacks.append(Timer(timedelta(seconds=5)))
    bench.trainer.max_epochs = max_epochs
    for _ in range(3):
        bench.step()
    assert bench.loop.expected_wall_s(step_ns=0.4e9) == pytest.approx(expected_s)


def test_expected_wall_time_counts_batches_when_several_optimizers_step_in_each() -> None:
    bench = Bench()
    bench.trainer.max_epochs, bench.trainer.max_steps = None, 40
    bench.step()
    bench.step()
    bench.trainer.global_step = 4
    assert bench.loop.expected_wall_s(step_ns=0.4e9) == pytest.approx(20 * 0.4)
