"""PerfDoctor in Fabric's loops and plain ones: same results, same phases as with a Trainer, nothing left behind."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import Logger
from lightning.pytorch import seed_everything
from torch import nn
from torch.optim import optimizer as torch_optimizer

import lightning_perf.probes.timeline.steps
import lightning_perf.run
import lightning_perf.user_loop
from lightning_perf import ConfigError, DoctorOptions, PerfDoctor
from lightning_perf.loop_trainer import LoopTrainer
from lightning_perf.probes.telemetry.pauses import GarbagePauses
from lightning_perf.rules.engine import diagnose
from lightning_perf.seams.timed import _Timed
from tests.rules.session_builder import build_session

from .conftest import assert_adds_up
from .models import BATCH_SIZE, N_FEATURES, SleepyBackward, loader

KINDS = ("plain", "fabric")


class Setup:
    """A model with an optimizer, and PerfDoctor beside them unless a loop is bare."""

    def __init__(self, kind: str = "plain", is_bare: bool = False, **arguments: Any) -> None:
        seed_everything(3, verbose=False)
        arguments = {"reports": [], "probe_data": False, **arguments}
        self.doctor = None if is_bare else PerfDoctor(**arguments)
        self.plain_model = self.model = nn.Sequential(nn.Linear(N_FEATURES, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.torch_optimizer = self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.backward: Callable[[torch.Tensor], None] = torch.Tensor.backward
        if kind == "fabric":
            self.fabric = Fabric(accelerator="cpu", devices=1, callbacks=self.doctor)
            self.model, self.optimizer = self.fabric.setup(self.model, self.optimizer)
            self.backward = self.fabric.backward
        if self.doctor is not None:
            self.doctor.watch(self.model, self.optimizer)

    def steps(self, data: Any, **arguments: Any) -> Any:
        return data if self.doctor is None else self.doctor.steps(data, **arguments)

    def close(self) -> Any:
        """Return the session of the run."""
        if self.doctor is None:
            return None
        self.doctor.close()
        return self.doctor.session

    def step(self, batch: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        self.backward(loss)
        self.optimizer.step()
        return loss.item()

    def validate(self, n_batches: int = 3, **arguments: Any) -> None:
        self.model.eval()
        with torch.no_grad():
            for batch in self.steps(loader(n_batches), **arguments):
                self.model(batch)
        self.model.train()

    def replaced(self) -> list[str]:
        """Return what is still replaced."""
        left = [name for name, one in (("backward", torch.autograd.backward), ("save", torch.save)) if is_timed(one)]
        left += ["zero_grad"] * ("zero_grad" in vars(self.torch_optimizer))
        left += ["hook"] * any(each._forward_pre_hooks for each in self.model.modules())
        left += ["optimizers"] * bool(torch_optimizer._global_optimizer_pre_hooks)
        left += ["optimizers"] * bool(torch_optimizer._global_optimizer_post_hooks)
        left += ["gc"] * any(isinstance(getattr(each, "__self__", None), GarbagePauses) for each in gc.callbacks)
        return left


class FabricLogger(Logger):
    """A logger of the user's, which has no folder."""

    name, version = "mine", "7"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None: ...

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


def is_timed(function: Any) -> bool:
    return isinstance(function, _Timed)


class Clock:
    """A clock that only moves when a test advances it."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns

    def pass_ms(self, ms: int) -> None:
        self.ns += ms * 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (lightning_perf.probes.timeline.steps, lightning_perf.run):
        monkeypatch.setattr(module, "now_ns", made)
    return made


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", ["auto", (1, 1, 2, 0)])
def test_losses_and_weights_are_identical_when_measured(kind: str, schedule: Any) -> None:
    def train(is_bare: bool) -> tuple[Any, ...]:
        setup = Setup(kind, is_bare, schedule=schedule)
        losses = []
        for _ in range(3):
            losses += [setup.step(batch) for batch in setup.steps(loader(14, shuffle=True))]
            setup.validate()
        session = setup.close()
        assert session is None or (session.run.n_steps == 42 and session.probes_off == ())
        weights = [parameter.detach().tolist() for parameter in setup.model.parameters()]
        return losses, weights, torch.get_rng_state().tolist()

    assert train(is_bare=True) == train(is_bare=False)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_replaced_when_the_run_is_closed(kind: str) -> None:
    setup = Setup(kind)
    for batch in setup.steps(loader(3)):
        setup.step(batch)
    assert {"backward", "save", "zero_grad", "hook", "optimizers"} <= set(setup.replaced())
    assert_adds_up(setup.close())
    assert setup.replaced() == []


def test_phases_are_those_of_the_calls_when_time_passes_in_each(clock: Clock) -> None:
    setup = Setup()

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(12):
            clock.pass_ms(5)
            yield torch.ones(BATCH_SIZE, N_FEATURES)

    for batch in setup.steps(batches()):
        clock.pass_ms(1)
        setup.optimizer.zero_grad()
        loss = setup.model(batch).square().mean()
        clock.pass_ms(7)
        SleepyBackward.apply(loss, lambda place: clock.pass_ms(11)).backward()
        hook = setup.optimizer.register_step_post_hook(lambda *_: clock.pass_ms(3))
        setup.optimizer.step()
        hook.remove()
        clock.pass_ms(2)
        torch.save({}, io.BytesIO())
    session = setup.close()
    medians = {name: phase.p50_s * 1e3 for name, phase in session.steady.phases.items() if phase.p50_s}
    expected = {"data_wait": 5, "forward": 7, "backward": 11, "optimizer": 3, "other": 1 + 2}
    assert medians == pytest.approx(expected, rel=0.02)  # how exactly quantiles are known
    assert session.run.has_trainer is False
    assert [time.n_calls for time in session.steady.named if time.name == "save_checkpoint"] == [11]


def test_gradients_that_are_not_cleared_are_found() -> None:
    setup = Setup("fabric")
    for batch in setup.steps(loader(16)):
        setup.backward(setup.model(batch).square().mean())
        setup.optimizer.step()
    (optimizer,) = setup.close().settings.model.optimizers
    assert optimizer.n_steps_watched
    assert optimizer.steps_without_zero_grad == optimizer.n_steps_watched


def test_rules_about_a_trainer_are_skipped_with_a_reason() -> None:
    setup = Setup()
    for batch in setup.steps(loader(40)):
        setup.step(batch)
    outcomes = {one.code: one for one in diagnose(setup.close()).outcomes}
    for code in ("PD502", "PD504", "PD505", "PD506"):
        assert outcomes[code].status == "skipped"
        assert "no Trainer" in outcomes[code].reason


# -- epochs and validation --------------------------------------------------------------------------------------------


def test_each_loop_is_an_epoch() -> None:
    setup = Setup()
    for n_batches in (4, 6):
        for batch in setup.steps(loader(n_batches)):
            setup.step(batch)
    session = setup.close()
    assert [epoch.n_steps for epoch in session.epochs] == [4, 6]
    assert session.run.n_optimizer_steps == 10
    assert session.run.status == "finished"


@pytest.mark.parametrize("place", ["between", "within"])
def test_validation_is_not_counted_as_steps(place: str) -> None:
    setup = Setup()
    for _ in range(2):
        for index, batch in enumerate(setup.steps(loader(5))):
            setup.step(batch)
            if place == "within" and index == 2:
                setup.validate(4)
        if place == "between":
            setup.validate(4)
    session = setup.close()
    assert session.run.n_steps == 10
    assert session.validation.n_steps + session.validation.n_warmup_steps in (
        7,
        8,
    )  # that between may be a warm-up step
    assert session.settings.model.eval_outputs_have_graph is False
    assert_adds_up(session)


def test_evaluation_mode_makes_a_loop_validation_unless_overridden() -> None:
    setup = Setup()
    for batch in setup.steps(loader(5)):
        setup.step(batch)
    setup.model.eval()
    for batch in setup.steps(loader(3)):
        setup.model(batch)
    for batch in setup.steps(loader(2), validation=False):
        setup.step(batch)
    session = setup.close()
    assert session.run.n_steps == 7
    assert session.settings.model.eval_outputs_have_graph is True


@pytest.mark.parametrize("is_in_evaluation_mode", [True, False])
def test_second_loop_over_the_training_loader_trains(is_in_evaluation_mode: bool) -> None:
    setup, data = Setup(), loader(5)
    for _ in range(2):
        setup.model.eval()
        for batch in setup.steps(data):
            setup.model.train(not is_in_evaluation_mode)
            setup.step(batch)
        setup.model.eval()
        for batch in setup.steps(loader(3)):
            setup.model(batch)
    session = setup.close()
    assert [epoch.n_steps for epoch in session.epochs] == [5, 5]


# -- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_next_loop_is_a_new_epoch_when_the_last_one_was_left(kind: str) -> None:
    setup = Setup(kind)
    for index, batch in enumerate(setup.steps(loader(8))):
        if index == 3:
            break
        setup.step(batch)
    for index, batch in enumerate(setup.steps(loader(8))):
        setup.step(batch)
        if index == 3:
            break
    session = setup.close()
    assert [epoch.n_steps for epoch in session.epochs] == [3, 4]  # a step counts once its optimizer has stepped
    assert session.probes_off == ()
    assert_adds_up(session)


def test_iterator_that_is_closed_ends_the_loop() -> None:
    setup = Setup()
    batches = iter(setup.steps(loader(8)))
    next(batches)
    setup.step(next(batches))
    batches.close()
    assert setup.close().run.n_steps == 2


@pytest.mark.parametrize("place", ["body", "forward", "optimizer", "validation", "loader"])
def test_exception_passes_through_and_ends_the_run(place: str) -> None:
    setup = Setup()
    error = ValueError("the user's")

    def fail(*_: Any) -> None:
        raise error

    def batches() -> Iterator[torch.Tensor]:
        yield from loader(4)
        if place == "loader":
            fail()

    def train() -> None:
        try:
            for index, batch in enumerate(setup.steps(batches())):
                setup.step(batch)
                if index == 2 and place == "forward":
                    setup.plain_model[2].register_forward_hook(fail)
                if index == 2 and place == "optimizer":
                    setup.optimizer.register_step_pre_hook(fail)
                if index == 2 and place == "validation":
                    for _ in setup.steps(loader(2)):
                        fail()
                if index == 2 and place == "body":
                    fail()
        finally:
            setup.close()

    with pytest.raises(ValueError, match="the user's") as raised:
        train()
    assert raised.value is error
    session = setup.doctor.session
    assert (session.run.status, session.run.error) == ("failed", "ValueError")
    assert session.run.n_steps == (4 if place == "loader" else 3)
    assert session.probes_off == ()
    assert setup.replaced() == []


def test_loop_goes_on_when_an_exception_is_caught() -> None:
    setup = Setup()
    for _ in range(2):
        try:
            for index, batch in enumerate(setup.steps(loader(4))):
                setup.step(batch)
                if index == 2:
                    raise KeyError
        except KeyError:
            pass
    session = setup.close()
    assert (session.run.status, session.run.n_steps) == ("finished", 6)
    assert_adds_up(session)


def test_batches_are_passed_on_when_the_run_is_closed_within_the_loop() -> None:
    setup = Setup()
    n_batches = 0
    for batch in setup.steps(loader(5)):
        n_batches += 1
        setup.step(batch)
        if n_batches == 2:
            setup.close()
            assert setup.replaced() == []
    assert n_batches == 5


def test_batches_kept_from_before_a_close_are_measured_in_a_run_of_their_own() -> None:
    setup = Setup()
    batches = setup.steps(loader(6))
    sessions = []
    for _ in range(2):
        for batch in batches:
            setup.step(batch)
        sessions.append(setup.close())
    assert [one.run.n_steps for one in sessions] == [6, 6]
    assert sessions[0].run.id != sessions[1].run.id


def test_run_is_reported_when_python_ends_without_close() -> None:
    setup = Setup()
    for batch in setup.steps(loader(4)):
        setup.step(batch)
    setup.doctor._loop_run._end_at_exit()
    assert setup.doctor.session.run.status == "finished"
    assert setup.replaced() == []


@pytest.mark.parametrize("is_in_loop", [False, True])
def test_error_at_the_prompt_ends_the_run_only_if_a_loop_raised_it(
    is_in_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    setup = Setup()

    def cell() -> None:
        for batch in setup.steps(loader(4)):
            setup.step(batch)
            if is_in_loop:
                raise NameError("a typo")

    try:
        cell()
        raise NameError("a typo")
    except NameError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    setup.doctor._loop_run._end_at_exit()
    assert setup.doctor.session.run.status == ("failed" if is_in_loop else "finished")


def test_training_goes_on_when_a_probe_fails() -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a probe's")

    setup = Setup()
    for index, batch in enumerate(setup.steps(loader(5))):
        setup.step(batch)
        if index == 1:
            setup.doctor._probes._handlers["before_backward"] = {"gradients": fail}
    session = setup.close()
    assert session.run.n_steps == 5
    assert [failure.probe for failure in session.probes_off] == ["gradients"]
    assert setup.replaced() == []


# -- other ways to use it ---------------------------------------------------------------------------------------------


def test_steps_are_counted_when_the_loop_fetches_batches_itself() -> None:
    setup = Setup()
    for batch in loader(5):
        with setup.doctor.step(batch):
            setup.step(batch)
    with pytest.raises(KeyError), setup.doctor.step():
        raise KeyError
    session = setup.close()
    assert session.run.n_steps == 5
    assert session.epochs[0].samples == 5 * BATCH_SIZE
    assert {"forward", "backward", "optimizer"} <= set(session.steady.phases)


def test_step_within_steps_is_not_counted_twice() -> None:
    setup = Setup()
    for batch in setup.steps(loader(5)):
        with setup.doctor.step():
            setup.step(batch)
    assert setup.close().run.n_steps == 5


def test_second_run_begins_when_the_first_is_closed() -> None:
    setup = Setup()
    for n_batches in (3, 4):
        for batch in setup.steps(loader(n_batches)):
            setup.step(batch)
        session = setup.close()
        assert session.run.n_steps == n_batches
        assert session.settings.model.class_name == "Sequential"
    setup.doctor.close()  # does nothing
    assert setup.doctor.session is session


def test_steps_have_the_length_of_the_loader() -> None:
    setup = Setup()
    assert len(setup.steps(loader(5))) == 5
    with pytest.raises(TypeError):
        len(setup.steps(iter([])))
    setup.close()


def test_hooks_can_be_called_when_fabric_has_set_up_the_model() -> None:
    setup = Setup("fabric")
    for batch in setup.steps(loader(3)):
        setup.step(batch)
        setup.fabric.call("on_train_batch_end", loss=0.0)
    setup.fabric.call("on_train_epoch_end")
    assert setup.close().run.n_steps == 3


def test_settings_of_fabric_are_read() -> None:
    setup = Setup("fabric")
    data = setup.fabric.setup_dataloaders(loader(3))
    for batch in setup.steps(data):
        setup.step(batch)
    settings = setup.close().settings
    assert settings.trainer.precision == "32-true"
    assert settings.trainer.strategy == "SingleDeviceStrategy"
    assert settings.loaders[0].batch_size == BATCH_SIZE
    assert settings.model.optimizers[0].class_name == "Adam"


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
@pytest.mark.parametrize("name", ["CSVLogger", "TensorBoardLogger"])
def test_session_is_saved_in_the_folder_of_fabrics_logger(package: str, name: str, tmp_path: Path) -> None:
    logger_class = getattr(importlib.import_module(f"{package}.loggers"), name)
    setup = Setup("fabric", reports=["json", "tensorboard"])
    setup.fabric._loggers = [logger_class(tmp_path)]
    for batch in setup.steps(loader(3)):
        setup.step(batch)
    assert setup.close().probes_off == ()
    folder = tmp_path / "lightning_logs" / "version_0"
    assert (folder / "perf_session.json").exists()
    assert any(folder.glob("events.*")) is (name == "TensorBoardLogger")


def test_run_has_a_folder_when_the_logger_of_fabric_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    setup = Setup("fabric", reports=["json"])
    setup.fabric._loggers = [FabricLogger()]
    for batch in setup.steps(loader(3)):
        setup.step(batch)
    assert setup.close().probes_off == ()
    assert (tmp_path / "mine" / "7" / "perf_session.json").exists()


def test_run_that_another_one_replaced_is_not_kept() -> None:
    setup = Setup()
    for batch in setup.steps(loader(2)):
        setup.step(batch)
    replaced = weakref.ref(setup.doctor._loop_run)
    setup.doctor._run.restore()  # as a Trainer's run with the same PerfDoctor does
    setup.doctor._release()
    for batch in setup.steps(loader(2)):
        setup.step(batch)
    gc.collect()
    assert replaced() is None
    setup.close()


def test_list_of_batches_is_one_loader() -> None:
    setup = Setup()
    data = list(loader(4))
    for batch in setup.steps(data):
        setup.step(batch)
        for _ in setup.steps(data, validation=True):
            pass
    session = setup.close()
    assert [each.class_name for each in session.settings.loaders if each.stage == "train"] == ["builtins.list"]
    assert [name for name in session.missing if "loaders.train" in name] == ["settings.loaders.train.0"]


def test_other_ranks_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup("fabric")
    monkeypatch.setattr(setup.fabric.strategy, "global_rank", 1)
    assert sum(1 for batch in setup.steps(loader(3)) if setup.step(batch)) == 3
    assert setup.close() is None


def test_other_ranks_read_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup("fabric")
    monkeypatch.setattr(setup.fabric.strategy, "global_rank", 1)
    made: list[Any] = []
    monkeypatch.setattr(lightning_perf.user_loop, "LoopTrainer", lambda *a: made.append(a) or LoopTrainer(*a))
    for _ in range(3):
        with setup.doctor.step():
            pass
    assert len(made) == 1


def test_failure_is_reported_once_when_nothing_can_be_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup()
    monkeypatch.setattr(lightning_perf.user_loop, "LoopTrainer", lambda *_: 1 / 0)
    for _ in range(3):
        with setup.doctor.step():
            pass
    assert caplog.text.count("does not measure this loop") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_child_that_was_forked_in_a_loop_reports_nothing() -> None:
    setup = Setup()
    for batch in setup.steps(loader(4)):
        setup.step(batch)
    run = setup.doctor._loop_run
    before = setup.doctor.session
    run._run._pid = -1  # as in a child
    run._end_at_exit()
    assert setup.doctor.session is before
    run._run._pid = os.getpid()
    assert setup.close().run.status == "finished"


@pytest.mark.hangs
def test_hang_in_a_loop_is_described(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = DoctorOptions(hang_after_s=0.3, module_depth=0)
    setup = Setup(schedule=None, reports=["json", "console"], out_dir=tmp_path, options=options)
    file = tmp_path / "hang.txt"
    for index, batch in enumerate(setup.steps(loader(50))):
        setup.step(batch)
        end_s = time.monotonic() + 60.0
        while index == 40 and not (file.exists() and "after 40 steps" in file.read_text()) and time.monotonic() < end_s:
            time.sleep(0.01)
    hang = next(each for each in setup.close().hangs if each.n_steps == 40)
    assert "in test_hang_in_a_loop_is_described" in hang.where
    assert "after 40 steps" in capfd.readouterr().out


def test_copies_and_files_of_the_model_do_not_hold_the_probes() -> None:
    setup = Setup()
    file = io.BytesIO()
    for batch in setup.steps(loader(2)):
        setup.step(batch)
        twin = copy.deepcopy(setup.model)
        torch.save(setup.model, file)
    setup.close()
    assert b"lightning_perf" not in file.getvalue()
    assert twin(torch.ones(1, N_FEATURES)).shape == (1, 1)


def test_compiled_model_is_not_compiled_again() -> None:
    def train(is_bare: bool) -> int:
        torch._dynamo.reset()
        graphs: list[Any] = []

        def backend(graph: Any, _: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        setup = Setup(is_bare=is_bare)
        setup.model = torch.compile(setup.plain_model, backend=backend, fullgraph=True)
        if setup.doctor is not None:
            setup.doctor.watch(setup.model)
        for batch in setup.steps(loader(4)):
            setup.step(batch)
        setup.close()
        return len(graphs)

    assert train(is_bare=False) == train(is_bare=True)


def test_examples_in_the_docs_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "fabric.md").read_text(encoding="utf-8")
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        names: dict[str, Any] = {}
        exec(example, names)
        assert names["doctor"].session.run.n_steps in (32, 50)
    assert "PerfDoctor" in capsys.readouterr().out


def test_recommendations_are_those_of_a_loop() -> None:
    session = build_session({"run": {"has_trainer": False}, "settings": {"trainer": {"is_anomaly_detection_on": True}}})
    (finding,) = (one for one in diagnose(session).findings if one.code == "PD503")
    assert finding.prescriptions[0].code == "torch.autograd.set_detect_anomaly(False)"
    assert not finding.prescriptions[0].trainer_flags


def test_watching_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected models, optimizers or schedulers"):
        PerfDoctor().watch(3)


def test_schedulers_are_timed(clock: Clock) -> None:
    setup = Setup()
    scheduler = torch.optim.lr_scheduler.LambdaLR(setup.optimizer, lambda _: clock.pass_ms(1) or 1.0)
    setup.doctor.watch(scheduler)
    for batch in setup.steps(loader(5)):
        setup.step(batch)
        scheduler.step()
    assert setup.close().steady.phases["scheduler"].p50_s == pytest.approx(1e-3, rel=0.01)
