"""Several processes: the report comes once, every rank takes part in every collective call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_perf import PerfDoctor, load
from lightning_perf.records import RANKS_FOLDER
from tests.forkserver import Forkserver

from .conftest import Make
from .models import Tiny, loader

pytestmark = pytest.mark.timeout(150)


SCRIPT = """
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from lightning_perf import PerfDoctor

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

if __name__ == "__main__":
    doctor = PerfDoctor(schedule=None)
    trainer = Trainer(callbacks=[doctor], accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False,
                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=2))
    assert doctor.session.ranks is not None
    assert type(trainer.profiler).__name__ == "PassThroughProfiler"
"""


def written_session(folder: Path) -> Any:
    (path,) = (path for path in folder.rglob("perf_session*.json") if path.parent.name != RANKS_FOLDER)
    return load(path)


def test_report_comes_once_when_processes_are_spawned_by_the_trainer(
    make_trainer: Make, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    doctor = PerfDoctor(schedule=None, out_dir=tmp_path / "out", every_n_epochs=2)
    trainer = make_trainer(doctor, devices=2, strategy="ddp_spawn", max_epochs=3)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader(8), loader(2))
    assert trainer.profiler is profiler
    assert capfd.readouterr().out.count("12 steps · ") == 1
    session = written_session(tmp_path / "out")
    assert session.run.world_size == 2
    assert session.run.n_steps == 12
    assert session.ranks.step_max_s >= session.ranks.step_mean_s > 0


def test_report_comes_once_when_processes_are_forked_by_the_trainer(forkserver: Forkserver, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_forked(SCRIPT))
    assert _session_of(forkserver, script).run.world_size == 2


def test_report_comes_once_when_a_script_is_launched_for_each_rank(forkserver: Forkserver, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert _session_of(forkserver, script).ranks.step_mean_s > 0


FAILS_ON_ONE_RANK = """
from lightning_perf.probes.timeline import stage

begins = stage.StageTimer.batch_begins

def fails_on_one(self, batch):
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
        raise RuntimeError("planted")
    begins(self, batch)

stage.StageTimer.batch_begins = fails_on_one

if __name__ == "__main__":"""


def test_training_goes_on_when_probes_fail_on_one_rank_alone(forkserver: Forkserver, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_forked(SCRIPT.replace('\nif __name__ == "__main__":', FAILS_ON_ONE_RANK)))
    session = _session_of(forkserver, script)
    assert session.run.n_steps == 16
    assert session.ranks.step_mean_s == session.ranks.step_max_s > 0


def _forked(script: str) -> str:
    """Return the script with a Trainer that forks its ranks, which leave nothing in the parent."""
    return script.replace('"ddp"', '"ddp_fork"').partition("    assert ")[0]


def _session_of(forkserver: Forkserver, script: Path) -> Any:
    """Return the output of a script that reports once."""
    done = forkserver.run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PerfDoctor  ") == 1
    return written_session(script.parent)
