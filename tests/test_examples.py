"""Every example runs and says what it promises."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_main(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.main()


def test_first_diagnosis_names_the_loader(capsys):
    session = run_main("01_first_diagnosis")

    assert session.verdict.code == "PD101"
    assert re.search(r"Verdict: .* of each step waits for data", capsys.readouterr().out)


def test_plain_training_runs_without_lightning_perf(monkeypatch):
    monkeypatch.setattr("sys.argv", ["02_plain_training.py"])  # its main reads the command line
    trainer = run_main("02_plain_training")

    assert trainer.global_step == 96


def test_tutorial_of_the_measured_gain_works_word_by_word(tmp_path):
    page = (EXAMPLES.parent / "docs" / "tutorial" / "measured-gain.md").read_text(encoding="utf-8")
    commands = [block.strip() for block in re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    assert [command.split()[1] for command in commands] == ["run", "data", "run", "compare", "trial"]
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(EXAMPLES.parent),
        "COLUMNS": "100",
    }
    shown = {}
    for command in (commands[0], commands[2], commands[3]):  # the other two have tests of their own, and take long
        words = [sys.executable, "-m", "lightning_perf", *command.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        shown[command] = done.stdout
    assert "PD101 starved-by-loader" in shown[commands[0]]
    comparison = shown[commands[3]]
    assert re.search(r"^a step, typical +\d", comparison, re.MULTILINE), comparison  # the verdict is the machine's
    assert re.search(r"num_workers +0 +2$", comparison, re.MULTILINE), comparison
    assert "settings.trainer.callbacks" not in comparison


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_is_run_by_a_test(path):
    assert f'"{path.stem}"' in Path(__file__).read_text()
