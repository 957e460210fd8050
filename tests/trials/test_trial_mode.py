"""The result and files of a measured training, and what it does not change; each with a real command."""

from __future__ import annotations

import importlib
import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lightning_perf import PerfDoctor
from lightning_perf.trials import inside, modes
from lightning_perf.trials.inject_callbacks import TreaterHooks, callback_class
from lightning_perf.trials.job import Job, Result, read_events, read_result
from lightning_perf.trials.runner import Ended, run_supervised
from tests.fuzzing import thinned
from tests.trainer.interrupts import Preempted, preempt

from . import scripts

STEPS = 60


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, in which commands run."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in scripts.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return folder


def measured(tmp_path: Path, command: Sequence[str], **job: object) -> Ended:
    """Runs a command for ``STEPS`` steps."""
    defaults = {"mode": "trial", "folder": str(tmp_path / "job"), "steps": STEPS, "with_doctor": False, "seed": 1}
    ended = run_supervised(command, Job(**{**defaults, **job}), time_limit_s=200)
    assert ended.failure == "", ended.log
    assert "trained to the end" not in ended.log
    return ended


def test_package_with_own_sampler_accumulation_and_checkpoints_is_measured_and_nothing_of_the_users_is_touched(
    tmp_path: Path, work: Path
) -> None:
    (work / "pack").mkdir()
    scripts.put(work / "pack", __init__="", train=scripts.PACKAGE)
    (work / "kept").mkdir()
    (work / "kept" / "last.ckpt").write_bytes(b"weeks of training")
    before = scripts.tree(work)
    ended = measured(tmp_path, scripts.python("-m", "pack.train", "--epochs", "4"))
    result = ended.result
    assert result is not None
    assert (result.n_steps, result.n_batches, result.batches_per_step) == (STEPS, 2 * STEPS, 2)
    assert result.samples_per_step == 8
    assert len(result.losses) == 2 * STEPS
    assert scripts.tree(work) == before
    written = {path.name for path in (tmp_path / "job" / "outputs").rglob("*")}
    assert {"last.ckpt", "metrics.csv"} <= written

    (last,) = (tmp_path / "job").rglob("last.ckpt")
    resumed = ["--epochs", "9", "--resume", str(last)]
    again = measured(
        tmp_path, scripts.python("-m", "pack.train", *resumed), folder=str(tmp_path / "again"), steps=20
    ).result
    assert again is not None
    assert again.n_steps == 20
    assert again.losses[0] < result.losses[0]
    assert scripts.tree(work) == before


def test_cli_with_config_file_is_measured(tmp_path: Path, work: Path) -> None:
    scripts.put(work, train=scripts.CLI, config=scripts.CLI_CONFIG)
    before = scripts.tree(work)
    ended = measured(tmp_path, scripts.python("train.py", "fit", "--config", "config.yaml"), steps=None, max_s=1.0)
    assert ended.result is not None
    assert ended.result.samples_per_step == 4
    assert scripts.tree(work) == before


def test_manual_optimization_on_several_loaders_is_measured_when_the_namespace_is_pytorch_lightning(
    tmp_path: Path, work: Path
) -> None:
    pytest.importorskip("pytorch_lightning")
    scripts.put(work, train=scripts.MANUAL)
    before = scripts.tree(work)
    ended = measured(tmp_path, scripts.python("train.py"))
    assert ended.result is not None
    assert ended.result.n_steps == ended.result.n_batches == STEPS
    assert len(ended.result.losses) == STEPS
    assert scripts.tree(work) == before

    again = measured(tmp_path, scripts.python("train.py"), folder=str(tmp_path / "again"), seed=1)
    assert again.result is not None
    assert again.result.losses == ended.result.losses


@pytest.mark.parametrize("launcher", thinned(["lightning"], ["torchrun"]))
def test_both_processes_are_measured_as_one_when_training_is_distributed(
    tmp_path: Path, work: Path, launcher: str
) -> None:
    scripts.put(work, train=scripts.DDP)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = scripts.python(*(torchrun if launcher == "torchrun" else []), "train.py")
    ended = measured(tmp_path, command, steps=STEPS if launcher == "torchrun" else None, max_s=1.0)
    assert ended.result is not None
    assert ended.result.world_size == 2
    assert ended.result.samples_per_step == 4
    assert ended.code == 0


# Puts things in order when it ends, as scripts do; and one that will not be stopped.
TIDY = (
    scripts.MODEL.format(package="lightning.pytorch")
    + """
import atexit, sys, tempfile
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

atexit.register(print, "exit handler ran")
logger = TensorBoardLogger("tb")
logger.experiment.add_scalar("before", 1.0, 0)
with tempfile.TemporaryDirectory() as scratch:
    print("scratch", scratch)
    try:
        trainer = Trainer(max_epochs=99, logger=logger, enable_checkpointing=False, **QUIET)
        trainer.fit(Model(), DataLoader(data(), batch_size=2))
        print("trained to the end")
    {handler}
    finally:
        trainer.save_checkpoint("mine.ckpt")
        print("finally ran")
print("went on")
"""
)


def test_script_is_unwound_when_it_was_measured(tmp_path: Path, work: Path) -> None:
    scripts.put(work, train=TIDY.replace("{handler}", ""))
    ended = measured(tmp_path, scripts.python("train.py"))
    assert ended.code == 0
    assert "finally ran" in ended.log
    assert "exit handler ran" in ended.log
    assert "went on" not in ended.log
    scratch = next(line.split()[1] for line in ended.log.splitlines() if line.startswith("scratch"))
    assert not Path(scratch).exists()
    assert set(scripts.tree(work)) == {"train.py"}
    assert list((tmp_path / "job" / "outputs").rglob("events.out*"))


def test_script_that_catches_its_end_is_stopped_where_it_uses_a_trainer_again(tmp_path: Path, work: Path) -> None:
    stubborn = """except:
        print("caught")
        trainer.test(Model(), DataLoader(data(), batch_size=2))
        print("tested")"""
    scripts.put(work, train=TIDY.replace("{handler}", stubborn))
    ended = measured(tmp_path, scripts.python("train.py"))
    assert "caught" in ended.log
    assert "tested" not in ended.log
    assert "finally ran" in ended.log
    assert set(scripts.tree(work)) == {"train.py"}


def test_script_that_will_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(inside, "end_process", end)
    monkeypatch.setattr(inside, "UNWINDING_S", 0.01)
    monkeypatch.setattr(inside, "_code", None)
    with pytest.raises(inside.Over) as raised:
        inside.leave(3)
    assert raised.value.code == 3
    assert ended.wait(30)
    assert codes == [3]
    with pytest.raises(inside.Over):
        inside.leave_if_over()


def built(job: Job, original: Callable[..., None], *args: Any) -> Any:
    """Build a Trainer whose constructor is ``original``."""
    trainer = SimpleNamespace(is_global_zero=True, callbacks=[])
    wrapper = inside.TrainerWrapper(job, "lightning.pytorch", modes.MODES[job.mode](job))
    wrapper.around_init(original)(trainer, *args)
    return trainer


def test_trainer_with_positional_arguments_is_measured_too(tmp_path: Path) -> None:
    seen: list[Any] = []

    def build(trainer: Any, *, accelerator: str = "auto", strategy: str = "auto", **others: Any) -> None:
        seen.append((accelerator, strategy, others))

    job = Job(mode="run", folder=str(tmp_path), specs=("log-every-n=7",), with_doctor=False)
    assert len(built(job, build, "cpu", "ddp").callbacks) == 1
    assert seen == [("cpu", "ddp", {"log_every_n_steps": 7})]
    assert read_events(tmp_path) == {"trainer"}


def test_error_of_the_scripts_own_trainer_reaches_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "keeps_process", True)  # no timer is set
    job = Job(mode="trial", folder=str(tmp_path))

    def reject(trainer: Any, **arguments: Any) -> None:
        raise ValueError("no GPU")

    with pytest.raises(ValueError, match="no GPU"):  # which may build another Trainer then
        built(job, reject)
    assert read_result(tmp_path) is None
    with pytest.raises(inside.Over):
        built(msgspec.structs.replace(job, specs=("precision-fp16",)), reject)
    result = read_result(tmp_path)
    assert result is not None
    assert result.reason == "Trainer rejects the treatments' arguments, so none is applied: ValueError: no GPU"


def test_treatment_that_the_trainer_rejects_is_not_reported_as_applied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reject(trainer: Any, **arguments: Any) -> None:
        if "precision" in arguments:
            raise ValueError("no such precision")

    job = Job(mode="run", folder=str(tmp_path), with_doctor=False, specs=("precision-bf16",))
    (treater,) = built(job, reject).callbacks
    treater.applied(SimpleNamespace(is_global_zero=True))
    assert capsys.readouterr().err == (
        "lightning-perf: Trainer rejects the treatments' arguments, so none is applied: ValueError: no such precision\n"
    )


def test_error_of_a_signal_handler_reaches_the_training(tmp_path: Path) -> None:
    applier = SimpleNamespace(undo=lambda: preempt("while a treatment is undone"))
    with pytest.raises(Preempted):
        TreaterHooks(applier, fail=lambda error: None).teardown(None, None, "fit")
    job = Job(mode="run", folder=str(tmp_path), specs=("precision-bf16",))
    with pytest.raises(Preempted):
        built(job, lambda trainer, **_: preempt("in the Trainer"))


def test_perf_doctor_of_the_script_diagnoses_as_the_trials_own_and_applies_nothing(tmp_path: Path) -> None:
    doctor = PerfDoctor(schedule=None, apply=["loader-workers"], autopilot="exact")
    mode = modes.TrialMode(Job(mode="trial", folder=str(tmp_path), doctor={"schedule": [10, 2, 3, 1]}))
    mode.built(SimpleNamespace(callbacks=[doctor]), "lightning.pytorch")
    assert (doctor.apply, doctor.autopilot, doctor.reports) == ((), None, ("json",))
    assert doctor.window_options is not None
    assert (doctor.window_options.wait, doctor.window_options.active) == (10, 3)


@pytest.mark.parametrize("namespace", ["lightning.pytorch", "pytorch_lightning"])
def test_callbacks_can_be_pickled(namespace: str) -> None:
    pytest.importorskip(namespace)
    treater = callback_class(TreaterHooks, namespace)(applier=None, fail=print)
    assert isinstance(treater, importlib.import_module(namespace).Callback)
    assert callback_class(TreaterHooks, namespace) is type(treater)
    copy = pickle.loads(pickle.dumps(treater))
    assert type(copy) is type(treater)
    assert vars(copy) == vars(treater)


def test_first_training_counts_when_a_command_starts_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "_code", 0)  # as if it had been asked to end: no timer is set
    mode = modes.TrialMode(Job(mode="trial", folder=str(tmp_path)))
    mode.finish(Result(status="ok", n_steps=30))
    mode.finish(Result(status="ok", n_steps=10))
    result = read_result(tmp_path)
    assert result is not None
    assert result.n_steps == 30
    with pytest.raises(inside.Over):
        mode.fit(None, lambda: pytest.fail("a second training ran"))
