from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from history.runs import run

from benchmarks.comparison.simulated_sessions import simulated
from lightning_perf.records import Comparison
from tests.cli.command_line import BLOCKER, call


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return simulated(1, between=0.0).save(tmp_path / "base").parent


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    return simulated(2, between=0.0, slower=1.2).save(tmp_path / "slower").parent


def test_compare_draws_both_and_exits_with_0_when_nothing_is_asked_for(
    base: Path, slower: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "compare", base, slower / "perf_session.json") == 0
    assert capsys.readouterr().out.startswith("PerfDoctor: Slower: time per step is ")


def test_compare_prints_the_record_when_asked_for_json(
    base: Path, slower: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "compare", base, slower, "--json") == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Comparison)
    assert found.times[0].change == "slower"
    assert call(monkeypatch, "compare", base, slower, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["stage"] == "fit"


def test_compare_writes_markdown_into_a_file(
    base: Path, slower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "comparison.md"
    assert call(monkeypatch, "compare", base, slower, "--format", "markdown", "--out", out) == 0
    assert out.read_text(encoding="utf-8").startswith("**PerfDoctor: Slower")
    assert call(monkeypatch, "compare", base, slower, "--format", "markdown", "--out", out) == 2


@pytest.mark.parametrize(("percent", "code"), [(5, 1), (10, 1), (19, 0), (50, 0)])
def test_gate_fails_only_when_the_whole_interval_is_beyond_it(
    percent: int, code: int, base: Path, slower: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert call(monkeypatch, "compare", base, slower, "--fail-on-regression", percent) == code
    captured = capsys.readouterr()
    assert captured.out  # the report is there either way
    assert captured.err.startswith(f"lightning-perf: regression beyond {percent} %: time per step is") == (code == 1)


def test_gate_names_the_sample_when_batch_sizes_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = (run(i, loader={"batch_size": size}).save(tmp_path / str(i)).parent for i, size in ((1, 32), (2, 16)))
    assert call(monkeypatch, "compare", base, new, "--fail-on-regression", 5) == 1
    assert "regression beyond 5 %: time per sample is " in capsys.readouterr().err


def test_gate_passes_when_the_training_became_faster(base: Path, slower: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, "compare", slower, base, "--fail-on-regression", "0") == 0


def test_gate_is_bad_input_when_too_little_was_measured_to_judge(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = simulated(9, n_epochs=1, steps_an_epoch=20).save(tmp_path / "short")
    assert call(monkeypatch, "compare", base, short) == 0
    assert call(monkeypatch, "compare", base, short, "--fail-on-regression", "5") == 2
    assert "cannot be judged" in capsys.readouterr().err


def test_a_folder_of_folders_is_a_side_of_several_runs(
    slower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in (3, 4, 5):
        simulated(i).save(tmp_path / "runs" / f"version_{i}")
    assert call(monkeypatch, "compare", tmp_path / "runs", slower, "--json") == 0
    assert len(msgspec.json.decode(capsys.readouterr().out, type=Comparison).base) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("{base}", "{base}"), "are the same run (1)"),
        (("{base}", "nowhere"), "cannot read a session from nowhere"),
        (("{base}", "{slower}", "--fail-on-regression", "-1"), "expected a percentage of at least 0"),
        (("{base}", "{slower}", "--fail-on-regression", "nan"), "expected a percentage of at least 0"),
        (("{base}", "{slower}", "--format", "html"), "expected one of console, markdown, json"),
        (("{base}", "{slower}", "--json", "--format", "markdown"), "choose one"),
    ],
)
def test_bad_input_gives_one_clear_error(
    arguments: tuple[str, ...], expected: str, base: Path, slower: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = [argument.format(base=base, slower=slower) for argument in arguments]
    assert call(monkeypatch, "compare", *given) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lightning-perf: ")
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_error_names_the_file_when_a_session_is_broken(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "perf_session.json"
    broken.write_text("{", encoding="utf-8")
    assert call(monkeypatch, "compare", base, broken) == 2
    assert str(broken) in capsys.readouterr().err


def test_compare_needs_neither_torch_nor_lightning(base: Path, slower: Path) -> None:
    command = [sys.executable, "-c", BLOCKER, "compare", str(base), str(slower)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_gate_of_the_how_to_page_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "ci-gate.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    steps = {step.get("name"): step.get("run", "") for step in workflow["jobs"]["compare"]["steps"]}
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        simulated(10 + i, between=0.003).save(tmp_path / "sessions" / "base" / str(i))
        simulated(20 + i, between=0.003, slower=1.2).save(tmp_path / "sessions" / "new" / str(i))
    command = shlex.split(steps["Compare"])
    assert command.pop(0) == "lightning-perf"
    assert call(monkeypatch, *command) == 1
    assert "regression beyond 5 %" in capsys.readouterr().err
    assert (tmp_path / "comparison.md").read_text(encoding="utf-8").startswith("**PerfDoctor: Slower")
    assert "lightning-perf run --out" in steps["Train both alternately"]
