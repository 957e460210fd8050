"""``lightning-perf run``: an unchanged training with PerfDoctor and treatments added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf import load
from tests.trials import scripts

OWN_DOCTOR = scripts.PLANTED.replace("import time", "import time\nfrom lightning_perf import PerfDoctor").replace(
    "Trainer(max_epochs=3,", 'Trainer(limit_train_batches=40, max_epochs=1, callbacks=[PerfDoctor(out_dir="own")],'
)
PLAIN = scripts.PACKAGE.replace("trained to the end", "{trainer.log_every_n_steps} trained to the end").replace(
    'print("', 'print(f"'
)


def run(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightning_perf", "run", *arguments]
    return subprocess.run(
        command, cwd=work, env=scripts.environment(), capture_output=True, text=True, timeout=200, check=False
    )


def test_training_completes_with_its_own_outputs_and_a_session(tmp_path: Path) -> None:
    scripts.put(tmp_path, train=PLAIN)
    script = [sys.executable, "train.py", "--epochs", "1"]
    done = run(tmp_path, "--out", "seen", "--with", "log-every-n=11,loader-workers=0", "--", *script)
    assert done.returncode == 0, done.stderr
    assert "11 trained to the end" in done.stdout
    confirmed = "lightning-perf: applied log-every-n=11, loader-workers=0; loaders other than the training loader are"
    assert confirmed in done.stderr
    assert "PerfDoctor  " in done.stdout
    session = load(tmp_path / "seen")
    assert session.run.n_steps == 200
    assert session.settings.trainer.log_every_n_steps == 11
    written = set(scripts.tree(tmp_path))
    assert {"final.ckpt", "kept/last.ckpt", "logs/lightning_logs/version_0/metrics.csv"} <= written
    assert not any("lightning-perf" in name for name in written)


def test_script_with_its_own_perf_doctor_keeps_it_and_gets_treatments(tmp_path: Path) -> None:
    scripts.put(tmp_path, train=OWN_DOCTOR)
    done = run(tmp_path, "--out", "ours", "--with", "log-every-n=102", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PerfDoctor  ") == 1
    assert "more than one PerfDoctor" not in done.stderr
    assert not (tmp_path / "ours").exists()
    assert "--out is not used: the script has a PerfDoctor of its own, which writes to own" in done.stderr
    session = load(tmp_path / "own")
    assert session.settings.trainer.log_every_n_steps == 102


@pytest.mark.parametrize(
    ("code", "returned", "expected"),
    [
        ("print('nothing')", 2, "never imported Lightning's Trainer"),
        ("import sys; sys.exit(7)", 7, "never imported Lightning's Trainer"),
    ],
)
def test_exit_code_is_the_commands_and_a_missing_trainer_is_reported(
    tmp_path: Path, code: str, returned: int, expected: str
) -> None:
    done = run(tmp_path, "--", sys.executable, "-c", code)
    assert done.returncode == returned
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("before", [[], ["--"]])
def test_options_behind_the_command_are_the_commands_own(tmp_path: Path, before: list[str]) -> None:
    done = run(tmp_path, *before, sys.executable, "-c", "import sys; sys.exit(len(sys.argv))", "--out", "x", "--doctor")
    assert done.returncode == 4
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--with", "no-such", "--", "true"], "is not a treatment"),
        (["--", "no-such-command"], "No such file"),
        (["--", "python", "-I", "train.py"], "ignore PYTHONPATH"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
