"""``lightning-perf data``, run as a user runs it: the script stays as it is; nothing of it is trained or written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf import load
from lightning_perf.records import Session

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")

SCRIPT = """
import time, sys
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 512

    def decode(self):
        time.sleep(0.004)

    def __getitem__(self, index):
        self.decode()
        return torch.full((4,), float(index))

class OwnLoader(DataLoader):
    pass

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        time.sleep(0.01)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

if __name__ == "__main__":
    kind = OwnLoader if "--own" in sys.argv else DataLoader
    trainer = Trainer(accelerator="cpu", max_epochs=1, enable_progress_bar=False)
    if "--no-fit" not in sys.argv:
        trainer.fit(Model(), kind(Images(), batch_size=8))
    print("trained to the end")
"""


def run_data(
    folder: Path, *flags: str, script: str = SCRIPT, script_flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "lightning_perf", "data", *flags, "--", sys.executable, "train.py", *script_flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=200, check=False
    )
    assert "trained to the end" not in done.stdout + done.stderr or "--no-fit" in script_flags
    assert {path.name for path in folder.iterdir()} <= {"train.py", "out", "perf_logs", "__pycache__"}
    return done


def session_in(folder: Path) -> Session:
    assert {path.name for path in folder.iterdir()} == {"perf_session.json"}
    return load(folder)


def test_data_names_the_function_and_both_ceilings_when_a_command_waits_for_its_data(tmp_path: Path) -> None:
    done = run_data(tmp_path, "--out", "out", "--time", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    session = session_in(tmp_path / "out")
    assert session.run.stage == "data"
    assert session.steady is None
    probe = session.loader_probe
    assert probe is not None
    worst = probe.functions[0]
    source = SCRIPT.splitlines()
    assert (worst.name, Path(worst.file).name) == ("Images.decode", "train.py")
    assert "def decode" in source[worst.line - 1]
    assert probe.compute_s is not None
    assert probe.compute_s >= 0.01
    assert probe.compute_basis.startswith("training on one batch")
    at_zero = next(point for point in probe.curve if point.num_workers == 0)
    assert at_zero.batch_s >= 8 * 0.004
    assert [one.stage for one in session.settings.loaders] == ["train"]
    assert "Images.decode" in done.stdout
    assert "train.py" in done.stdout


def test_data_times_a_loader_as_it_is_when_it_cannot_be_copied(tmp_path: Path) -> None:
    done = run_data(tmp_path, "--out", "out", "--time", "5", "--json", script_flags=("--own",))
    assert done.returncode == 0, done.stdout + done.stderr
    probe = session_in(tmp_path / "out").loader_probe
    assert probe is not None
    assert probe.status == "refused"
    assert "OwnLoader is not a plain torch DataLoader" in probe.reason
    assert '"loader_probe"' in done.stdout
    assert [point.num_workers for point in probe.curve] == [0]
    assert probe.curve[0].batch_s >= 8 * 0.004
    assert probe.compute_s is not None


def test_data_reports_the_reason_when_a_command_never_trains(tmp_path: Path) -> None:
    done = run_data(tmp_path, script_flags=("--no-fit",))
    assert done.returncode == 2
    assert "it built a Trainer, but never called its fit" in done.stderr


def test_data_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "lightning_perf", "data", "--out", str(tmp_path / "file"), "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is a file" in done.stderr


def test_data_leaves_what_is_in_its_folder_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out" / "work").mkdir(parents=True)
    (tmp_path / "out" / "work" / "mine.txt").write_text("kept")
    done = run_data(tmp_path, "--out", "out", script="")
    assert done.returncode == 2
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["work", "mine.txt"]

    (tmp_path / "out" / "perf_session.json").write_text("a session")
    done = run_data(tmp_path, "--out", "out", script="")
    assert done.returncode == 2
    assert "holds a session already" in done.stderr
    assert (tmp_path / "out" / "perf_session.json").read_text() == "a session"
