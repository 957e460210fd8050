"""PerfDoctor with the classes of ``pytorch_lightning``, in a separate process, as users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf import load
from tests.forkserver import Forkserver

pytest.importorskip("pytorch_lightning")

SCRIPT = """
import sys
import torch
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
from lightning_perf.pytorch_lightning import PerfDoctor

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss
    validation_step = training_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

doctor = PerfDoctor()
assert isinstance(doctor, pl.Callback)
trainer = pl.Trainer(callbacks=[doctor], accelerator="cpu", max_epochs=2, enable_progress_bar=False,
                     log_every_n_steps=2, profiler="simple")
profiler = trainer.profiler
data = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=2)
trainer.fit(Model(), data, data)
assert trainer.profiler is profiler
assert doctor.session.probes_off == (), doctor.session.probes_off
assert "log_metrics" not in vars(trainer.logger)
assert {"data_wait", "forward", "backward", "optimizer", "checkpoint"} <= set(doctor.session.epochs[0].phases)
assert "lightning.pytorch" not in sys.modules, "the other namespace was loaded too"
"""


def test_run_is_measured_when_the_namespace_is_pytorch_lightning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.rglob("perf_session.json")
    session = load(path)
    assert session.run.n_steps == 32
    assert session.validation is not None
    assert "PerfDoctor  " in done.stdout


WITHOUT_RESOURCE = """
import sys
import lightning.pytorch, psutil  # their own care for Windows is not ours to test
for name in [name for name in sys.modules if name.partition(".")[0] == "lightning_perf"]:
    del sys.modules[name]
sys.modules["resource"] = None
from lightning_perf import PerfDoctor
PerfDoctor()
"""


def test_callback_is_imported_when_there_is_no_resource_module(forkserver: Forkserver, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_RESOURCE)
    done = forkserver.run(script)
    assert done.returncode == 0, done.stderr
