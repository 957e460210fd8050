from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from reports.sessions import SESSIONS, starved

from lightning_perf.cli.report import FORMATS
from lightning_perf.records import RANKS_FOLDER, RankSummary, combine_ranks, files
from lightning_perf.reports import formats
from lightning_perf.reports.brief import MAX_LINES
from lightning_perf.reports.console import brief_report, session_document, to_text
from lightning_perf.reports.render.html import to_page
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.rules.engine import all_rules, diagnose
from tests.cli.command_line import BLOCKER, call


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return starved().save(tmp_path / "run")


@pytest.mark.parametrize("name", SESSIONS)
def test_report_draws_the_session_when_given_its_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = SESSIONS[name]()
    if name == "hostile":  # JSON has no NaN
        session = msgspec.structs.replace(session, findings=())
    monkeypatch.setenv("COLUMNS", "80")
    file = session.save(tmp_path)
    assert call(monkeypatch, "report", file) == 0
    assert capsys.readouterr().out == to_text(brief_report(session, str(file)), 80)


def test_report_draws_the_session_when_given_its_folder(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "report", saved.parent) == 0
    assert capsys.readouterr().out.startswith("PerfDoctor  54 % of the time waits for data")


def test_report_draws_other_formats(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "report", saved, "--format", "markdown") == 0
    assert capsys.readouterr().out == to_markdown(starved(), is_folded=True)
    assert call(monkeypatch, "report", saved, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["code"] == "PD101"


@pytest.mark.parametrize("name", FORMATS[1:])
def test_each_format_returns_text_that_has_the_code_of_the_finding(name: str) -> None:
    assert "PD101" in formats.FORMATS[name].draw(starved(), False, "run")


def test_report_names_the_formats_when_the_one_asked_for_does_not_exist(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "report", saved, "--format", "pdf") == 2
    assert capsys.readouterr().err == (
        f"lightning-perf: --format pdf is not known; expected one of {', '.join(FORMATS)}\n"
    )


def test_report_shows_why_rules_were_skipped_when_all_is_given(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, "report", saved)
    assert "8 needed" not in capsys.readouterr().out
    call(monkeypatch, "report", saved, "--all")
    assert "8 needed" in capsys.readouterr().out


def test_report_writes_a_file_and_its_folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "a" / "b.md"
    assert call(monkeypatch, "report", saved, "--format", "markdown", "--out", out) == 0
    assert out.read_text(encoding="utf-8") == to_markdown(starved(), is_folded=True)
    assert list(out.parent.iterdir()) == [out]


def test_report_keeps_an_existing_file_unless_forced(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.txt"
    out.write_text("mine")
    assert call(monkeypatch, "report", saved, "--out", out) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert call(monkeypatch, "report", saved, "--out", out, "--force") == 0
    assert out.read_text(encoding="utf-8") == to_text(brief_report(starved(), str(saved)))


def test_report_keeps_the_old_file_when_writing_breaks_off(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaking(*_: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "mine.txt"
    out.write_text("mine")
    monkeypatch.setattr(files.os, "replace", breaking)
    assert call(monkeypatch, "report", saved, "--out", out, "--force") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "run"]


def test_report_refuses_a_folder_as_file(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "report", saved, "--out", tmp_path, "--force") == 2
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema_version": 99, "run": {}}'])
def test_report_error_is_one_line_when_a_file_is_invalid(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "perf_session.json"
    file.write_bytes(content)
    assert call(monkeypatch, "report", file) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert str(file) in captured.err
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("field", "value"), [("span_s", 1e308), ("span_s", -1.0), ("n_steps", 2**63), ("samples_per_s", 1e300)]
)
@pytest.mark.parametrize("verb", ["report", "compare"])
def test_error_names_the_field_in_one_line_when_it_is_out_of_bounds(
    verb: str,
    field: str,
    value: float,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = json.loads(saved.read_text(encoding="utf-8"))
    document["steady"][field] = value
    saved.write_text(json.dumps(document), encoding="utf-8")
    assert call(monkeypatch, verb, *([saved] if verb == "report" else [saved, saved])) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"`$.steady.{field}`" in line


def test_report_runs_the_rules_again_only_when_asked(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "report", saved, "--select", "PD1") == 2
    assert "--diagnose" in capsys.readouterr().err
    assert call(monkeypatch, "report", saved, "--diagnose", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [outcome["code"] for outcome in document["outcomes"]] == [rule.code for rule in all_rules()]
    assert call(monkeypatch, "report", saved, "--diagnose", "--select", "XY9") == 2
    assert "XY9" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [(), ("--format", "markdown"), ("--format", "html"), ("--format", "json"), ("--diagnose",)]
)
def test_report_works_when_torch_and_lightning_cannot_be_imported(saved: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, "report", str(saved), *arguments],
        capture_output=True, encoding="utf-8", timeout=120, check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "PerfDoctor" in done.stdout or '"schema_version"' in done.stdout
    assert "\x1b" not in done.stdout


def test_report_prints_a_page_unchanged_when_the_terminal_knows_ascii_only(saved: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_perf", "report", str(saved), "--format", "html"],
        capture_output=True, timeout=120, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == to_page(starved(), str(saved))


@pytest.mark.parametrize("format_", ["console", "markdown"])
def test_report_prints_ascii_when_the_terminal_knows_nothing_else(saved: Path, format_: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_perf", "report", str(saved), "--format", format_],
        capture_output=True, timeout=120, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"1.7-2.1x" in done.stdout


def test_ranks_are_compared_when_the_first_one_left_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, data_s in ((1, 0.001), (2, 0.040), (3, 0.001)):
        summary = RankSummary(
            rank=rank, node="a", n_steps=100, step_s=0.1, own_s=0.05 + data_s, own_p50_s=0.05 + data_s,
            waiting_s=0.05 - data_s, waiting_n=20, parts_s={"data": data_s, "compute": 0.05, "host": 0.0},
        )  # fmt: skip
        alone = starved()
        run = msgspec.structs.replace(alone.run, rank=rank, world_size=4, id=f"rank{rank}")
        alone = diagnose(msgspec.structs.replace(alone, run=run, ranks=combine_ranks((summary,), 4)))
        assert "PD701" not in {finding.code for finding in alone.findings}
        alone.save(tmp_path / RANKS_FOLDER / f"perf_session.rank{rank}.json")
    assert call(monkeypatch, "report", tmp_path, "--full") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Rank 2 slows down all others" in shown
    assert "rank 0: it left no session" in shown


def test_report_is_brief_unless_full_is_asked_for(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "report", saved) == 0
    brief = capsys.readouterr().out
    assert len(brief.splitlines()) <= MAX_LINES
    assert "--full" in brief
    assert call(monkeypatch, "report", saved, "--full") == 0
    assert capsys.readouterr().out == to_text(session_document(starved(), place=str(saved)))
    assert call(monkeypatch, "report", saved, "--full", "--format", "markdown") == 0
    assert "--full has no effect on --format markdown" in capsys.readouterr().err
