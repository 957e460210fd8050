from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from history.runs import run

from lightning_perf.history.store import VARIABLE, History
from lightning_perf.records.remote import any_path
from tests.cli.command_line import call

Out = pytest.CaptureFixture[str]


@pytest.fixture
def recorded(history_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four runs of a training and a fifth with fewer workers, which waits for data."""
    monkeypatch.setenv("COLUMNS", "160")
    for n in range(1, 5):
        History(history_file).save(run(n, id=f"run{n}"))
    slow = run(
        9,
        id="slow9",
        loader={"num_workers": 4},
        slower=3.0,
        phase="data_wait",
        provenance={"script": "fit.py", "branch": "slow"},
    )
    History(history_file).save(slow)
    return history_file


@pytest.mark.usefixtures("recorded")
def test_list_shows_runs_with_their_change(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    assert call(monkeypatch, "history") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[3:8]] == ["slow9", "run4", "run3", "run2", "run1"]
    assert "%" in lines[3]
    assert "%" not in lines[7]
    assert call(monkeypatch, "history", "list", "-n", 2, "--format", "json") == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == ["slow9", "run4"]
    assert call(monkeypatch, "history", "list", "-n", 1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "%" in lines[3]  # since a run that is not listed
    assert lines[4].startswith("1 of 5 runs")


@pytest.mark.usefixtures("recorded")
def test_show_reports_a_run(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    assert call(monkeypatch, "history", "show", "run2", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["run"]["id"] == "run2"
    assert call(monkeypatch, "history", "show") == 0
    assert "1,000 steps" in capsys.readouterr().out
    assert call(monkeypatch, "history", "show", "nine") == 2
    assert "no run 'nine'" in capsys.readouterr().err


@pytest.mark.usefixtures("recorded")
def test_compare_names_the_likeliest_cause_and_how_to_try_it(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    assert call(monkeypatch, "history", "compare", "--last", "--format", "markdown") == 0
    out = capsys.readouterr().out
    assert out.startswith("**PerfDoctor: Slower")
    assert "lightning-perf trial --try loader-workers=8 -- python fit.py" in out
    assert call(monkeypatch, "history", "compare", "run1") == 2
    assert "is the first of its training" in capsys.readouterr().err


@pytest.mark.usefixtures("recorded")
def test_bisect_compares_two_runs_or_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    saved = run(1, loader={"num_workers": 2}).save(tmp_path / "good")
    url = any_path("memory://bisect/perf_session.json")
    url.write_bytes(saved.read_bytes())
    for good, workers in (("run1", 8), (str(saved), 2), (str(url), 2)):
        assert call(monkeypatch, "bisect", good, "slow9", "--format", "json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["trial"] == f"lightning-perf trial --try loader-workers={workers} -- python fit.py"
        assert found["suspects"][0]["name"] == "num_workers"
        assert found["comparison"]["times"][0]["name"] == "step"


@pytest.mark.usefixtures("recorded")
def test_bisect_names_settings_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    torch = {"is_cudnn_benchmark_on": True, "n_threads": 3}
    saved = run(1, loader={"num_workers": 2}, torch=torch).save(tmp_path / "good")
    assert call(monkeypatch, "bisect", str(saved), "slow9", "--format", "markdown") == 0
    table = capsys.readouterr().out.partition("What changed")[2].partition("##")[0]
    assert "cudnn benchmark yes → " in table
    assert "threads 3 → " in table
    assert "num\\_workers 2 → 4" in table
    assert not re.search(r"\b(is|n|has)\\?_", table)


@pytest.mark.usefixtures("recorded")
def test_baseline_is_taken_from_a_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    new = run(20, slower=1.3, provenance={"branch": "topic"}).save(tmp_path / "new").parent
    fail = ("--fail-on-regression", 5)
    assert call(monkeypatch, "compare", new, "--baseline", "history:main", *fail) == 1
    assert "history:run1 and 3 more" in capsys.readouterr().out
    for wrong in (("--baseline", "history:other"), ("--baseline", "main"), (), (new, "--baseline", "history:main")):
        assert call(monkeypatch, "compare", new, *wrong) == 2


def test_prune_drops_old_runs(recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    assert call(monkeypatch, "history", "prune", "--keep", 2) == 0
    assert capsys.readouterr().out.startswith("3 runs dropped")
    assert [row.id for row in History(recorded).rows()] == ["slow9", "run4"]
    assert call(monkeypatch, "history", "prune", "--keep", 1, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"n_dropped": 1, "file": str(recorded)}


def test_prune_makes_no_file(history_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    assert call(monkeypatch, "history", "prune") == 0
    assert capsys.readouterr().out.startswith("0 runs dropped")
    assert not history_file.exists()


@pytest.mark.parametrize(
    "arguments",
    [("x",), ("list", "--format", "html"), ("compare", "run1", "--last"), ("list", "run1"), ("prune", "run1")],
)
def test_wrong_arguments_are_one_line(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    assert call(monkeypatch, "history", *arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_commands_say_that_the_history_is_off(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert call(monkeypatch, "history") == 2
    assert "no history is kept" in capsys.readouterr().err


def test_an_empty_history_is_an_empty_list(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    assert call(monkeypatch, "history") == 0
    assert "0 runs" in capsys.readouterr().out
