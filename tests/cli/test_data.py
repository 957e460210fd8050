"""``lightning-perf data``, run as a user runs it: the script stays as it is; nothing of it is trained or written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf import load
from lightning_perf.cli.app import main
from lightning_perf.records import LoaderProbe, Session
from lightning_perf.trials import data as trials_data

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
    def __iter__(self):
        return super().__iter__()

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


RunData = Callable[..., SimpleNamespace]


@pytest.fixture
def run_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunData:
    """Return a function that runs the command line in this process and a script in processes of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(trials_data, "CEILING_S", 2.0)

    def run(*flags: str, script: str = SCRIPT, script_flags: tuple[str, ...] = ()) -> SimpleNamespace:
        Path("train.py").write_text(script)
        words = ["lightning-perf", "data", *flags, "--", sys.executable, "train.py", *script_flags]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert "trained to the end" not in out + err or "--no-fit" in script_flags
        assert {path.name for path in tmp_path.iterdir()} <= {"train.py", "out", "perf_logs", "__pycache__"}
        return SimpleNamespace(returncode=ended.value.code or 0, stdout=out, stderr=err)

    return run


Measured = Callable[..., tuple[SimpleNamespace, Session, LoaderProbe]]


@pytest.fixture
def measured(run_data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Return a function that runs the command with as much time as it needs on this machine."""

    def until(is_whole: Callable[[LoaderProbe], bool], time_s: int, *flags: str, **arguments: Any) -> Any:
        for factor in (1, 3, 9):
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            monkeypatch.setattr(trials_data, "CEILING_S", 2.0 * factor)
            done = run_data("--out", "out", "--time", str(factor * time_s), *flags, **arguments)
            assert done.returncode == 0, done.stdout + done.stderr
            session = session_in(tmp_path / "out")
            assert session.loader_probe is not None
            if is_whole(session.loader_probe):
                break
        return done, session, session.loader_probe

    return until


def session_in(folder: Path) -> Session:
    assert {path.name for path in folder.iterdir()} == {"perf_session.json"}
    return load(folder)


def test_data_names_the_function_and_both_ceilings_when_a_command_waits_for_its_data(measured: Measured) -> None:
    def is_whole(probe: LoaderProbe) -> bool:
        has_zero = any(point.num_workers == 0 for point in probe.curve)
        return bool(probe.functions) and has_zero and probe.compute_s is not None

    done, session, probe = measured(is_whole, 8)
    assert session.run.stage == "data"
    assert session.steady is None
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


def test_data_times_a_loader_as_it_is_when_it_cannot_be_copied(measured: Measured) -> None:
    done, _, probe = measured(lambda probe: probe.compute_s is not None, 5, "--json", script_flags=("--own",))
    assert probe.status == "refused"
    assert "OwnLoader overrides __iter__" in probe.reason
    assert '"loader_probe"' in done.stdout
    assert [point.num_workers for point in probe.curve] == [0]
    assert probe.curve[0].batch_s >= 8 * 0.004
    assert probe.compute_s is not None


def test_data_reports_the_reason_when_a_command_never_trains(
    run_data: RunData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_data, "_ceiling", lambda *_: (None, "not measured"))
    done = run_data(script_flags=("--no-fit",))
    assert done.returncode == 2
    assert "it built a Trainer, but never called its fit" in done.stderr


def test_data_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "lightning_perf", "data", "--out", str(tmp_path / "file"), "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is a file" in done.stderr


def test_data_leaves_what_is_in_its_folder_as_it_is(tmp_path: Path, run_data: RunData) -> None:
    (tmp_path / "out" / "work").mkdir(parents=True)
    (tmp_path / "out" / "work" / "mine.txt").write_text("kept")
    done = run_data("--out", "out", script="")
    assert done.returncode == 2
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["work", "mine.txt"]

    (tmp_path / "out" / "perf_session.json").write_text("a session")
    done = run_data("--out", "out", script="")
    assert done.returncode == 2
    assert "has a session already" in done.stderr
    assert (tmp_path / "out" / "perf_session.json").read_text() == "a session"
