"""Blocks of the autopilot, what is refused before them, and ranks; decisions are planted, so no clock matters."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from lightning_perf import autopilot
from lightning_perf.autopilot_blocks import TreatmentTry
from lightning_perf.probes.timeline.spans import PHASE_INDEX
from lightning_perf.probes.timeline.step_aggregator import KIND, LEFT_OUT_STEP, RECORD_WIDTH, USUAL_STEP
from lightning_perf.records import AutopilotTry, Collections, Generation, Prescription
from lightning_perf.stats import sequential
from tests.forkserver import Forkserver

from . import autopilot_trainings
from .autopilot_trainings import Numbers, Plant, decisions, doctor, train
from .conftest import Make

plant = autopilot_trainings.plant  # a fixture


def test_treatment_is_refused_when_it_excludes_one_that_apply_names(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(autopilot.parse("threads=2").treatment)
    plant("threads=2")
    one = doctor("numerics", apply=("flush-denormal",))
    monkeypatch.setattr(kind, "conflicts", frozenset({"flush-denormal"}))
    seen, _ = train(make_trainer, [one])
    assert decisions(one) == {"threads=2": "refused"}
    assert one.session.autopilot.tries[0].reason == "it cannot be combined with flush-denormal"
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
    monkeypatch.setattr(autopilot, "FIRST_SYNC_STEP", 5)
    one = doctor(reports=("console",))
    train(make_trainer, [one], DataLoader(Numbers(), batch_size=1), **arguments)
    assert decisions(one) == {"loader-workers=1": "refused"}
    assert one.session.autopilot.waiting == ()
    tried = one.session.autopilot.tries[0]
    assert tried.reason == "loaders are replaced between epochs: a try needs more than 6 further ones"
    assert tried.first_step < 48
    assert capsys.readouterr().out.count("loaders are replaced") == 1


@pytest.mark.parametrize("accumulated", [1, 3, 8])
def test_blocks_begin_at_the_same_place_between_two_optimizer_steps_when_gradients_are_accumulated(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch, accumulated: int
) -> None:
    pilots = plant("threads=2")
    monkeypatch.setattr(autopilot, "FIRST_SYNC_STEP", 5)
    one, begins = doctor("numerics"), []
    begin = autopilot.BlockTimes.begin

    def begun(self: Any, unit: Any) -> None:
        begins.append(pilots[0]._n_steps)
        begin(self, unit)

    monkeypatch.setattr(autopilot.BlockTimes, "begin", begun)
    train(make_trainer, [one], n_epochs=40, accumulate_grad_batches=accumulated)
    assert decisions(one) == {"threads=2": "undone"}
    assert one.session.autopilot.tries[0].block_steps % accumulated == 0
    assert len({n % accumulated for n in begins[1:-1]}) == 1  # all but the first, which has two steps


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


def test_block_ends_early_when_it_loses_what_may_be_lost(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    pilots = plant("threads=2", "fused-optimizer")
    monkeypatch.setattr(autopilot, "BLOCK_STEPS", 60)
    monkeypatch.setattr(autopilot.Autopilot, "_budget_s", lambda _: 50.0)
    monkeypatch.setattr(
        autopilot.BlockTimes, "overtime_s", lambda *_: 60.0 if pilots[0]._try.record.treatment == "threads=2" else 1.0
    )
    one = doctor("numerics")
    seen, _ = train(make_trainer, [one], n_epochs=30)
    tried = one.session.autopilot.tries[0]
    assert (tried.status, tried.n_pairs, tried.lost_s) == ("undone", 0, 60.0)
    assert "used up" in tried.reason
    assert sum(setting[1] == 2 for setting in seen.settings) < 60
    assert one.session.autopilot.waiting == ("fused-optimizer",)


class Epochs(Callback):
    """Notes the workers of each epoch."""

    def __init__(self) -> None:
        self.workers: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.workers.append(trainer.train_dataloader.num_workers)


@pytest.mark.parametrize(("safety", "n_settling"), [("exact", 0), ("numerics", 1)])
def test_first_epoch_after_a_switch_does_not_count_when_workers_persist(
    make_trainer: Make, plant: Plant, monkeypatch: pytest.MonkeyPatch, safety: str, n_settling: int
) -> None:
    pilots, epochs, counted = plant("loader-workers=1"), Epochs(), []
    monkeypatch.setattr(sequential.BlockTrial, "verdict", lambda self: "undone" if len(self.logs) >= 4 else None)
    inner = sequential.BlockTrial.add

    def add(self: Any, mean_s: float | None) -> None:
        assert self.is_next_treated == (epochs.workers[-1] == 1)
        counted.append(len(epochs.workers) - 1)
        inner(self, mean_s)

    monkeypatch.setattr(sequential.BlockTrial, "add", add)
    one = doctor(safety)
    train(make_trainer, [one, epochs], n_epochs=24)
    assert decisions(one) == {"loader-workers=1": "undone"}
    switches = [n for n in range(1, counted[-1] + 1) if epochs.workers[n] != epochs.workers[n - 1]]
    assert len(counted) == 8
    assert set(counted).isdisjoint(switches) is bool(n_settling)
    assert counted[-1] - counted[0] + 1 == 8 + n_settling * sum(n > counted[0] for n in switches)
    assert pilots[0]._tries[0].lost_s >= 0


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
        one = pilots[0]._try.record
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


# Only rank 0's clock and queue count; rank 1 must follow at the same steps.
SCRIPT = """
import multiprocessing, sys, torch, warnings
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
from lightning_perf import PerfDoctor, autopilot
from lightning_perf.stats import sequential
warnings.simplefilter("ignore")
multiprocessing.set_start_method("fork")  # not the default in Python 3.14; autopilot refuses other workers
autopilot.FIRST_SYNC_STEP, autopilot.IDLE_S, autopilot.BUDGET_SHARE, autopilot.SLOW_FACTOR = 5, 0.0, 1e9, 1e9
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


@pytest.mark.parametrize(("budget_s", "offered"), [(0.19, []), (0.21, ["gc-freeze=70000"])])
def test_treatment_waits_until_the_run_may_lose_the_time_to_apply_it(budget_s: float, offered: list[str]) -> None:
    full = Generation(generation=2, n=2, total_s=0.4, automatic_s=0.4)
    pauses = Collections(span_s=9.0, generations=(full,), automatic_by_phase_s={}, thresholds=(700, 10, 10))
    fix = Prescription(summary="", effort="one line", safety="exact", treatment="gc-freeze")
    found = SimpleNamespace(code="PD508", prescriptions=(fix,))
    pilot = SimpleNamespace(
        _known=set(), _waiting=[], _has_ranks=False, _try=None, _next_sync=9,
        _unit_of=lambda _: "step", _budget_s=lambda: budget_s, _lost_s=lambda: 0.0,
    )  # fmt: skip
    session = SimpleNamespace(findings=(found,), collections=pauses)
    autopilot.Autopilot.offer(pilot, session)  # type: ignore[arg-type]
    assert [text for text, *_ in pilot._waiting] == offered


@pytest.mark.parametrize(("settling_s", "lost_s"), [(0.6, 0.0), (1.2, 2.0)])
def test_starting_workers_loses_only_what_exceeds_a_usual_epoch(settling_s: float, lost_s: float) -> None:
    record = AutopilotTry(
        treatment="loader-workers=2", setting="", finding="", status="trying", unit="epoch", first_step=0, last_step=0
    )
    trial = TreatmentTry(record, random.Random(0), usual_s=1.0, discarded=0, period=1, keeps_workers=True)
    trial.steps_per_block, trial.settling_s = 10, settling_s
    trial.add(0.5)
    assert trial.lost_s() == pytest.approx(lost_s)


def test_the_code_to_keep_imports_from_the_package_of_the_trainer() -> None:
    from pytorch_lightning import Trainer

    kept = AutopilotTry(
        treatment="progress-refresh=20", setting="", finding="", status="kept", unit="step", first_step=0, last_step=9
    )
    trainer = object.__new__(Trainer)
    pilot = SimpleNamespace(
        _safety="exact", _tries=[kept], _try=None, _without=(), _waiting=[], _trainer=trainer,
        _budget_s=lambda: 1.0, _lost_s=lambda: 0.0,
    )  # fmt: skip
    code = autopilot.Autopilot.record(pilot).code  # type: ignore[arg-type]
    assert code.startswith("from pytorch_lightning.callbacks import TQDMProgressBar\n")
