"""PerfDoctor(autopilot=...): treatments tried in the user's own run; what decides is planted, so no clock matters."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor, autopilot, load
from lightning_perf.errors import ConfigError
from lightning_perf.probes.spans import PHASE_INDEX
from lightning_perf.probes.step_aggregator import KIND, LEFT_OUT_STEP, RECORD_WIDTH, USUAL_STEP
from lightning_perf.safe_loaders import RandomWatch
from lightning_perf.stats import sequential
from tests.forkserver import Forkserver

from .conftest import Make, assert_nothing_left
from .models import Tiny

Plant = Callable[..., list[autopilot.Autopilot]]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Return a function that queues treatments with the decision that each gets after six pairs of blocks."""

    def planted(*treatments: str, verdicts: dict[str, str] | None = None) -> list[autopilot.Autopilot]:
        pilots: list[autopilot.Autopilot] = []
        begin, decide = autopilot.Autopilot.__init__, autopilot.Autopilot._decide
        current: list[str] = []

        def init(self: Any, *arguments: Any) -> None:
            begin(self, *arguments)
            pilots.append(self)
            self._meeting = 4
            self._known |= {text.partition("=")[0] for text in treatments}
            specs = [autopilot.parse(text) for text in treatments]
            self._waiting = [(spec.text, "PD000", self._unit_of(spec)) for spec in specs]

        def decided(self: Any, *arguments: Any) -> Any:
            current[:] = [self._try.one.treatment] if self._try is not None else []
            return decide(self, *arguments)

        def verdict(self: Any) -> str | None:
            return (verdicts or {}).get(current[0], "undone") if len(self.logs) >= 3 else None

        monkeypatch.setattr(autopilot.Autopilot, "__init__", init)
        monkeypatch.setattr(autopilot.Autopilot, "_decide", decided)
        monkeypatch.setattr(sequential.BlockTrial, "verdict", verdict)
        monkeypatch.setattr(autopilot.Autopilot, "offer", lambda *_: None)
        monkeypatch.setattr(autopilot, "BUDGET_SHARE", 1e9)
        monkeypatch.setattr(autopilot, "SLOW_FACTOR", 1e9)
        monkeypatch.setattr(autopilot, "BLOCK_STEPS", 4)
        monkeypatch.setattr(autopilot, "BLOCK_S", 1e9)
        return pilots

    return planted


class Model(Tiny):
    """Draws random numbers in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(self.drop(batch)).square().mean() + random.random() * 0.01
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Numbers(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Augmented(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(4)


class OwnGenerator(Numbers):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + float(self.generator.random())


class Seen(Callback):
    """Notes batches, and settings that treatments change."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.settings: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch[:, 0].tolist())
        group = trainer.optimizers[0].param_groups[0]
        setting = (torch.is_anomaly_enabled(), torch.get_num_threads(), torch.get_float32_matmul_precision(),
                   bool(group.get("fused")))  # fmt: skip
        self.settings.append((*setting, trainer.train_dataloader.num_workers))


def train(
    make_trainer: Make, doctors: list[Any], data: Any = None, n_epochs: int = 12, model: Any = None, **arguments: Any
) -> tuple[Seen, dict[str, Any]]:
    """Return what a training saw and its results."""
    torch.manual_seed(3)
    random.seed(3)
    seen, model = Seen(), model if model is not None else Model()
    data = data if data is not None else DataLoader(Numbers(), batch_size=4, shuffle=True)
    trainer = make_trainer(seen, *doctors, max_epochs=n_epochs, **arguments)
    profiler = trainer.profiler
    trainer.fit(model, data)
    assert_nothing_left(trainer, profiler)
    assert trainer.train_dataloader is data
    weights = [parameter.tolist() for parameter in model.parameters()]
    state = (torch.get_rng_state().tolist(), random.getstate())
    return seen, {"losses": model.losses, "batches": seen.batches, "weights": weights, "random": state}


def doctor(safety: str = "exact", **arguments: Any) -> PerfDoctor:
    return PerfDoctor(autopilot=safety, **{"reports": (), "schedule": None, "probe_data": False, **arguments})


def decisions(one: PerfDoctor) -> dict[str, str]:
    assert one.session is not None
    assert one.session.probes_off == ()
    assert one.session.autopilot is not None
    return {each.treatment: each.status for each in one.session.autopilot.tries}


@pytest.mark.parametrize("verdict", ["kept", "undone"])
def test_results_are_bit_identical_when_exact_treatments_are_tried(
    make_trainer: Make, plant: Plant, verdict: str
) -> None:
    names = ("anomaly-off", "log-every-n=7", "loader-workers=1")
    plant(*names, verdicts=dict.fromkeys(names, verdict))
    _, expected = train(make_trainer, [], n_epochs=20, detect_anomaly=True)
    one = doctor()
    seen, results = train(make_trainer, [one], n_epochs=20, detect_anomaly=True)
    assert results == expected
    assert decisions(one) == dict.fromkeys(names, verdict)
    for place in (0, 4):  # anomaly detection, workers
        values = [setting[place] for setting in seen.settings]
        changes = sum(before != after for before, after in pairwise(values))
        assert changes >= 3
        assert (values[-1] == values[0]) is (verdict == "undone")
    assert not torch.is_anomaly_enabled()


def test_settings_change_between_blocks_and_are_put_back_when_numerics_may_change(
    make_trainer: Make, plant: Plant
) -> None:
    names = ("threads=2", "matmul-precision-high", "fused-optimizer")
    plant(*names, verdicts={"fused-optimizer": "kept"})
    one = doctor("numerics")
    seen, results = train(make_trainer, [one], n_epochs=16)
    assert decisions(one) == {"threads=2": "undone", "matmul-precision-high": "undone", "fused-optimizer": "kept"}
    for place, values in ((1, {1, 2}), (2, {"highest", "high"}), (3, {False, True})):
        assert {setting[place] for setting in seen.settings} == values
    assert seen.settings[-1][1:4] == (1, "highest", True)
    assert torch.get_num_threads() == 1
    assert all(np.isfinite(results["losses"]))
    assert (
        one.session.autopilot.code
        == "torch.optim.AdamW(self.parameters(), ..., fused=True)  # whichever optimizer you have"
    )
    assert [each.treatment for each in one.session.applied] == ["fused-optimizer"]


def test_numerics_are_not_tried_when_results_must_be_exact(make_trainer: Make) -> None:
    class Finds(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            pilot = next(each for each in trainer.callbacks if isinstance(each, PerfDoctor))._run.autopilot
            self.units = [
                pilot._unit_of(autopilot.parse(text))
                for text in (
                    "threads=2",
                    "anomaly-off",
                    "loader-workers=2",
                    "loader-persistent",
                    "compile",
                    "cudnn-benchmark",
                )
            ]

    exact, numerics = Finds(), Finds()
    train(make_trainer, [doctor(), exact], n_epochs=1)
    train(make_trainer, [doctor("numerics"), numerics], n_epochs=1)
    assert exact.units == [None, "step", "epoch", None, None, None]
    assert numerics.units == ["step", "step", "epoch", "epoch", None, None]


@pytest.mark.parametrize(("data", "reason"), [(Augmented(), "draws random"), (OwnGenerator(), "generator of its own")])
def test_workers_are_refused_when_samples_are_random_and_results_must_be_exact(
    make_trainer: Make, plant: Plant, data: Any, reason: str
) -> None:
    plant("loader-workers=1")
    _, expected = train(make_trainer, [], DataLoader(data, batch_size=4), n_epochs=8)
    if isinstance(data, OwnGenerator):
        data.generator = np.random.default_rng(1)
    one = doctor()
    _, results = train(make_trainer, [one], DataLoader(data, batch_size=4), n_epochs=8)
    assert results == expected
    assert decisions(one) == {"loader-workers=1": "refused"}
    assert reason in one.session.autopilot.tries[0].reason


class Transformed(Numbers):
    """Holds a generator of random numbers deep inside, and maybe an open file."""

    def __init__(self, file: Any = None) -> None:
        steps = SimpleNamespace(transforms=[SimpleNamespace(draw=np.random.default_rng(1))]) if file is None else file
        self.samples = SimpleNamespace(transform=steps)


@pytest.mark.parametrize("safety", ["exact", "numerics"])
def test_workers_are_refused_when_they_would_share_a_file(
    make_trainer: Make, plant: Plant, safety: str, tmp_path: Path
) -> None:
    plant("loader-workers=1")
    one = doctor(safety)
    with open(tmp_path / "samples", "w+b") as file:
        train(make_trainer, [one], DataLoader(Transformed(file), batch_size=4), n_epochs=8)
    assert decisions(one) == {"loader-workers=1": "refused"}
    assert "may share with the training" in one.session.autopilot.tries[0].reason


@pytest.mark.parametrize(
    ("data", "generator", "reason"),
    [(Numbers(), torch.Generator(), "loader's generator"), (Transformed(), None, "generator of its own")],
)
def test_workers_are_refused_when_the_loader_or_a_transform_has_a_generator(
    make_trainer: Make, plant: Plant, data: Any, generator: Any, reason: str
) -> None:
    plant("loader-workers=1")
    one = doctor()
    train(make_trainer, [one], DataLoader(data, batch_size=4, shuffle=True, generator=generator), n_epochs=8)
    assert decisions(one) == {"loader-workers=1": "refused"}
    assert reason in one.session.autopilot.tries[0].reason


def test_loader_that_the_trainer_makes_later_is_left_as_it_is_when_it_cannot_be_rebuilt(
    make_trainer: Make, plant: Plant
) -> None:
    class Own(DataLoader[Any]):
        """Another class cannot be rebuilt with other arguments."""

    class Reloads(Model):
        def train_dataloader(self) -> Any:
            kind = Own if self.trainer.current_epoch > 4 else DataLoader
            return kind(Numbers(), batch_size=4)

    plant("loader-workers=1")
    one = doctor()
    trainer = make_trainer(one, max_epochs=10, reload_dataloaders_every_n_epochs=1)
    trainer.fit(Reloads())
    assert trainer.current_epoch == 10
    assert decisions(one) == {"loader-workers=1": "refused"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, torch.cuda.OutOfMemoryError])
def test_everything_is_undone_when_the_run_ends_in_a_block(
    make_trainer: Make, plant: Plant, error: type[BaseException], tmp_path: Path
) -> None:
    class Fails(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step > 6 and torch.get_num_threads() == 2:
                raise error("planted")
            return super().training_step(batch, batch_idx)

    plant("threads=2")
    one = doctor("numerics", reports=("json",))
    trainer = make_trainer(one, max_epochs=4)
    profiler = trainer.profiler
    with pytest.raises((error, SystemExit)):
        trainer.fit(Fails(), DataLoader(Numbers(), batch_size=4))
    assert_nothing_left(trainer, profiler)
    assert torch.get_num_threads() == 1
    tried = load(next(tmp_path.rglob("perf_session.json"))).autopilot.tries
    assert [(each.treatment, each.status, each.is_treated) for each in tried] == [("threads=2", "trying", True)]
    assert "the run ended in a block with it" in str(one.report(full=True))


def test_session_on_disk_says_where_the_run_was_when_it_is_killed(
    make_trainer: Make, plant: Plant, tmp_path: Path
) -> None:
    files: list[Any] = []

    class Reads(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if torch.get_num_threads() == 2 and not files:
                files.append(json.loads(next(tmp_path.rglob("perf_session.json")).read_text()))

    plant("threads=2")
    one = doctor("numerics", reports=("json",))
    monkey = autopilot.Autopilot._next_try

    def after_first_epoch(self: Any, is_epoch_start: bool) -> Any:
        if self._trainer.current_epoch == 0:
            return autopilot.Order("wait", self._n_steps + 1)
        return monkey(self, is_epoch_start)

    autopilot.Autopilot._next_try = after_first_epoch  # type: ignore[method-assign]
    try:
        make_trainer(one, Reads(), max_epochs=4).fit(Model(), DataLoader(Numbers(), batch_size=4))
    finally:
        autopilot.Autopilot._next_try = monkey  # type: ignore[method-assign]
    assert [(each["treatment"], each["status"], each["is_treated"]) for each in files[0]["autopilot"]["tries"]] == [
        ("threads=2", "trying", True)
    ]


def test_treatment_is_refused_and_training_goes_on_when_it_cannot_be_applied(make_trainer: Make, plant: Plant) -> None:
    plant("progress-refresh=20", "threads=2")
    one = doctor("numerics")
    train(make_trainer, [one], n_epochs=10)
    assert decisions(one) == {"progress-refresh=20": "refused", "threads=2": "undone"}


def test_treatment_is_refused_when_it_excludes_one_that_apply_names(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(autopilot.parse("threads=2").treatment)
    plant("threads=2")
    one = doctor("numerics", apply=("flush-denormal",))
    monkeypatch.setattr(kind, "conflicts", frozenset({"flush-denormal"}))
    seen, _ = train(make_trainer, [one])
    assert decisions(one) == {"threads=2": "refused"}
    assert one.session.autopilot.tries[0].reason == "it excludes flush-denormal"
    assert {setting[1] for setting in seen.settings} == {1}


def test_treatment_is_refused_when_it_excludes_one_that_was_kept(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("fused-optimizer", "threads=2", verdicts={"fused-optimizer": "kept"})
    one = doctor("numerics")
    monkeypatch.setattr(type(autopilot.parse("fused-optimizer").treatment), "conflicts", frozenset({"threads"}))
    train(make_trainer, [one])
    assert decisions(one) == {"fused-optimizer": "kept", "threads=2": "refused"}


@pytest.mark.parametrize("arguments", [{"n_epochs": 1}, {"n_epochs": -1, "max_steps": 40}, {"n_epochs": 6}])
def test_loader_arguments_are_refused_within_an_epoch_when_too_few_epochs_follow(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: dict[str, Any],
) -> None:  # fmt: skip
    plant("loader-workers=1")
    monkeypatch.setattr(autopilot, "FIRST_MEETING", 5)
    one = doctor(reports=("console",))
    train(make_trainer, [one], DataLoader(Numbers(), batch_size=1), **arguments)
    assert decisions(one) == {"loader-workers=1": "refused"}
    assert one.session.autopilot.waiting == ()
    tried = one.session.autopilot.tries[0]
    assert tried.reason == "loaders are exchanged between epochs, and no more than 6 are left"
    assert tried.first_step < 48
    assert capsys.readouterr().out.count("loaders are exchanged") == 1


@pytest.mark.parametrize("accumulated", [1, 3, 8])
def test_blocks_begin_at_the_same_place_between_two_optimizer_steps_when_gradients_are_accumulated(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch, accumulated: int
) -> None:
    pilots = plant("threads=2")
    monkeypatch.setattr(autopilot, "FIRST_MEETING", 5)
    one, begins = doctor("numerics"), []
    begin = autopilot.BlockTimes.begin

    def begun(self: Any, unit: Any) -> None:
        begins.append(pilots[0]._n_steps)
        begin(self, unit)

    monkeypatch.setattr(autopilot.BlockTimes, "begin", begun)
    train(make_trainer, [one], n_epochs=40, accumulate_grad_batches=accumulated)
    assert decisions(one) == {"threads=2": "undone"}
    assert one.session.autopilot.tries[0].block_steps % accumulated == 0
    assert len({n % accumulated for n in begins[1:-1]}) == 1  # all but the first, which observes two steps


def test_steps_with_the_optimizer_count_the_same_when_single_steps_are_left_out() -> None:
    times = autopilot.BlockTimes(SimpleNamespace(loop=None))
    rows = np.zeros((9, RECORD_WIDTH), dtype=np.int64)
    rows[:, KIND] = USUAL_STEP
    rows[:, PHASE_INDEX["forward"]] = [9e9] + [1e9, 5e9] * 4  # one that is left out, then every second one steps
    rows[[2, 4], KIND] = LEFT_OUT_STEP
    times._rows = [rows]
    assert times.step_mean(1, period=2, is_least=False) == 3.0
    rows[[6, 8], KIND] = LEFT_OUT_STEP
    assert times.step_mean(1, period=2, is_least=True) == 1.0
    assert times.step_mean(9, period=2, is_least=False) is None


def test_nothing_is_collected_any_more_when_everything_is_decided(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    pilots = plant("threads=2", "loader-workers=1")
    train(make_trainer, [doctor("numerics")], n_epochs=20)
    assert [one.status for one in pilots[0]._tries] == ["undone", "undone"]
    assert not pilots[0]._times.is_on
    assert pilots[0]._times._rows == []


def test_budget_ends_all_tries_when_it_is_used_up(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("threads=2", "fused-optimizer")
    monkeypatch.setattr(autopilot.Autopilot, "_lost_s", lambda self: 0.0 if self._n_steps < 20 else 1e30)
    one = doctor("numerics")
    train(make_trainer, [one])
    assert decisions(one) == {"threads=2": "undone"}
    assert one.session.autopilot.waiting == ("fused-optimizer",)
    assert "used up" in one.session.autopilot.tries[0].reason


def test_slow_treatment_is_undone_after_its_first_steps(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("threads=2")
    monkeypatch.setattr(autopilot, "SLOW_FACTOR", 0.0)
    one = doctor("numerics")
    seen, _ = train(make_trainer, [one])
    assert decisions(one) == {"threads=2": "undone"}
    assert sum(setting[1] == 2 for setting in seen.settings) <= 6
    assert one.session.autopilot.tries[0].n_pairs == 0


def test_first_steps_do_not_decide_when_those_after_them_are_as_slow(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowness: dict[tuple[str, bool], float] = {("threads=2", True): 9.0, ("threads=2", False): 5.0}
    slowness |= {("fused-optimizer", True): 9.0, ("fused-optimizer", False): 4.0}

    def least_s(self: Any, *_: Any, is_least: bool) -> float:
        one = pilots[0]._try.one
        return slowness[one.treatment, one.is_treated] * pilots[0]._try.usual_s if is_least else 1.0

    pilots = plant("threads=2", "fused-optimizer")
    monkeypatch.setattr(autopilot, "SLOW_FACTOR", 2.0)
    monkeypatch.setattr(autopilot.BlockTimes, "step_mean", least_s)
    one = doctor("numerics")
    train(make_trainer, [one])
    first, second = one.session.autopilot.tries
    assert (first.status, first.reason, first.n_pairs) == ("undone", "", 3)
    assert (second.status, second.n_pairs) == ("undone", 0)
    assert "took 2.2 times as long" in second.reason


def test_treatment_is_undone_when_memory_passes_the_headroom(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("threads=2", verdicts={"threads=2": "kept"})
    monkeypatch.setattr(autopilot.Autopilot, "_peak", lambda _: 0.95 if torch.get_num_threads() == 2 else 0.3)
    one = doctor("numerics")
    seen, _ = train(make_trainer, [one])
    assert decisions(one) == {"threads=2": "refused"}
    assert "headroom" in one.session.autopilot.tries[0].reason
    assert seen.settings[-1][1] == 1


@pytest.mark.parametrize("method", ["_decide", "_is_fine", "_obeyed", "collect"])
def test_training_goes_on_unchanged_when_the_autopilot_itself_fails_in_a_block(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    plant("anomaly-off")
    owner = autopilot.BlockTimes if method == "collect" else autopilot.Autopilot
    inner = getattr(owner, method)

    def fails(self: Any, *arguments: Any) -> Any:
        if not torch.is_anomaly_enabled():
            raise ValueError("planted")
        return inner(self, *arguments)

    monkeypatch.setattr(owner, method, fails)
    _, expected = train(make_trainer, [], n_epochs=6, detect_anomaly=True)
    one = doctor()
    seen, results = train(make_trainer, [one], n_epochs=6, detect_anomaly=True)
    assert results == expected
    assert len(one.session.probes_off) == 1
    assert seen.settings[-1][0] is True


def test_checkpoints_resume_without_the_treatment_when_it_was_kept(make_trainer: Make, plant: Plant) -> None:
    plant("fused-optimizer", verdicts={"fused-optimizer": "kept"})
    model, one = Model(), doctor("numerics")
    trainer = make_trainer(one, max_epochs=10)

    class Saves(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint("last.ckpt")

    trainer.callbacks.append(Saves())
    trainer.fit(model, DataLoader(Numbers(), batch_size=4))
    assert decisions(one) == {"fused-optimizer": "kept"}
    groups = torch.load("last.ckpt", weights_only=False)["optimizer_states"][0]["param_groups"]
    assert [group["fused"] for group in groups] == [None]


def test_decisions_are_printed_one_line_each(
    make_trainer: Make, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("threads=2", "fused-optimizer", verdicts={"fused-optimizer": "kept"})
    one = doctor("numerics", reports=("console",))
    train(make_trainer, [one], n_epochs=16)
    lines = [line for line in capsys.readouterr().out.splitlines() if "undid" in line or "kept" in line]
    assert [line.split(":")[0] for line in lines[:2]] == [
        "PerfDoctor  undid threads=2",
        "PerfDoctor  kept fused-optimizer",
    ]


@pytest.mark.parametrize("value", ["all", True, 1])
def test_constructor_refuses_what_is_no_safety(value: Any) -> None:
    with pytest.raises(ConfigError, match="expected 'exact', 'numerics' or None"):
        PerfDoctor(autopilot=value)


@pytest.mark.parametrize("draw", [torch.rand, np.random.random, lambda _: random.random()])
def test_random_watch_notices_any_global_generator(draw: Any) -> None:
    watch = RandomWatch()
    watch.step_ends()
    watch.step_begins(None)
    assert watch.draws is False
    watch.step_ends()
    draw(1)
    watch.step_begins(None)
    assert watch.draws is True


# Only rank 0's clock and queue count; rank 1 must follow at the same steps.
SCRIPT = """
import sys, torch, warnings
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
from lightning_perf import PerfDoctor, autopilot
from lightning_perf.stats import sequential
warnings.simplefilter("ignore")
autopilot.FIRST_MEETING, autopilot.IDLE_S, autopilot.BUDGET_SHARE, autopilot.SLOW_FACTOR = 5, 0.0, 1e9, 1e9
autopilot.BLOCK_STEPS, autopilot.BLOCK_S = 4, 1e9
sequential.BlockTrial.verdict = lambda self: "kept" if len(self.logs) >= 3 else None
begin = autopilot.Autopilot.__init__
def init(self, *arguments):
    begin(self, *arguments)
    if self._trainer.is_global_zero:
        self._waiting = [("threads=2", "PD000", "step"), ("progress-refresh=9", "PD000", "step"),
                         ("loader-workers=1", "PD000", "epoch")]
autopilot.Autopilot.__init__ = init
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = []
    def training_step(self, batch, batch_idx):
        self.seen.append((torch.get_num_threads(), self.trainer.train_dataloader.num_workers))
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)
torch.set_num_threads(1)
model = Model()
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=20, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                     callbacks=[PerfDoctor(autopilot="numerics", reports=())])
trainer.fit(model, DataLoader(TensorDataset(torch.randn(80, 4)), batch_size=2))
open(f"rank-{trainer.global_rank}", "w").write(repr(model.seen))
"""


FAILS = """
from lightning_perf.live import Switch
on, off = Switch.on, Switch.off
def fails_on(self, trainer, module):
    return on(self, trainer, module) if trainer.is_global_zero else "planted"
def fails_off(self):
    off(self)
    if torch.distributed.get_rank() == 1:
        raise ValueError("planted")
"""


@pytest.mark.parametrize("name", ["on", "off"])
def test_all_ranks_undo_it_when_one_cannot_switch(forkserver: Forkserver, tmp_path: Path, name: str) -> None:
    script = tmp_path / "train.py"
    planted = f"{FAILS}Switch.{name} = fails_{name}\nclass Model"
    script.write_text(SCRIPT.replace("class Model", planted).replace("max_epochs=20", "max_epochs=8"))
    done = forkserver.run(script, n_ranks=2)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (eval((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1))
    assert first == second
    n_switched = sum(before != after for before, after in pairwise(first))
    # Where it cannot be switched on, no step is made with it. Where switching fails, nothing is tried any more.
    assert n_switched == {"on": 0, "off": 2}[name]
    assert first[-1] == (1, 0)


def test_ranks_change_at_the_same_steps_when_there_are_two(forkserver: Forkserver, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = forkserver.run(script, n_ranks=2)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (eval((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1))
    assert first == second
    assert first[-1] == (2, 1)
    assert {setting for setting, _ in first} == {1, 2}
    assert len({n for n, _ in first[:200]}) == 2
