"""``lightning-perf analyze`` and ``view``, as a user calls them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from traces.rank_traces import rank_events, save

from lightning_perf.cli import view
from tests.cli.command_line import call

FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"
ITEM_LOOP = FIXTURES / "cpu-item-loop.json.gz"

CONTRACT = {
    "source", "rank", "world_size", "device_name", "n_events", "n_kernels", "steps", "idle", "communication",
    "copies", "syncs", "kernels", "operators", "findings", "verdict",
}  # fmt: skip
HOSTILE_NAME = "aten::[red]</b>|x\x1b[2J"


def ranks(folder: Path) -> Path:
    """A folder of three ranks, written in the wrong order."""
    document = json.loads(gzip.decompress((FIXTURES / "cpu-plain.json.gz").read_bytes()))
    for rank in (2, 0, 1):
        document["distributedInfo"] = {"rank": rank, "world_size": 3, "backend": "gloo"}
        (folder / "deep").mkdir(exist_ok=True)
        (folder / "deep" / f"host{9 - rank}.pt.trace.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "perf_session.json").write_text("{}", encoding="utf-8")
    return folder


def test_json_is_a_list_of_records(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "analyze", ITEM_LOOP, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed) == 1
    assert set(printed[0]) >= CONTRACT
    assert set(printed[0]["steps"][0]["categories"]) == {
        *("kernel", "communication", "memcpy", "memset", "runtime", "data_loading", "cpu_op", "other")
    }


def test_ranks_come_in_order_when_a_folder_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call(monkeypatch, "analyze", ranks(tmp_path), "--json") == 0
    assert [record["rank"] for record in json.loads(capsys.readouterr().out)] == [0, 1, 2]
    assert call(monkeypatch, "analyze", tmp_path) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3 traces")
    assert "rank 2 of 3" in shown


def test_console_names_the_line_of_the_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "analyze", ITEM_LOOP) == 0
    shown = capsys.readouterr().out
    assert "record_fixtures.py:28 forward" in shown
    assert "aten::item" in shown
    assert "the trace is of a CPU run" in shown


def test_foreign_names_are_shown_as_they_are_when_they_hold_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": HOSTILE_NAME, "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": [event]}), encoding="utf-8")
    for arguments in ([], ["--markdown"]):
        assert call(monkeypatch, "analyze", file, *arguments) == 0
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        assert ("aten::[red]</b>|x" if not arguments else r"aten::\[red\]&lt;/b&gt;\|x") in shown


def test_the_rest_is_shown_when_one_trace_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph"', encoding="utf-8")
    assert call(monkeypatch, "analyze", broken, ITEM_LOOP, "--json") == 2
    captured = capsys.readouterr()
    assert [record["source"] for record in json.loads(captured.out)] == [ITEM_LOOP.name]
    assert "cut in the middle" in captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.json"], "does not exist"),
        ([".", "--json"], "holds no trace"),
        ([str(ITEM_LOOP), "--json", "--markdown"], "choose one"),
        ([str(ITEM_LOOP), "--max-bytes", "1000"], "allow more"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "analyze", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_out_writes_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "trace.md"
    assert call(monkeypatch, "analyze", ITEM_LOOP, "--markdown", "--out", out) == 0
    assert out.read_text(encoding="utf-8").startswith("## cpu-item-loop.json.gz")
    monkeypatch.setattr("lightning_perf.cli.analyze.analyze_many", None)
    assert call(monkeypatch, "analyze", ITEM_LOOP, "--out", out) == 2, "refused before anything is read"


def test_neither_torch_nor_lightning_is_imported() -> None:
    code = (
        "import sys; sys.argv = ['lightning-perf', 'analyze', sys.argv[1], '--json']\n"
        "from lightning_perf.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as leaving: assert not leaving.code\n"
        "assert not {'torch', 'lightning', 'pytorch_lightning', 'torchmetrics'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(ITEM_LOOP)], check=True, stdout=subprocess.DEVNULL)


def test_view_serves_the_unfolded_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        assert json.loads(Path(command[-1]).read_text(encoding="utf-8"))["traceEvents"]
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(view, "_viewer", lambda: ["vizviewer"])
    monkeypatch.setattr(view.subprocess, "run", run)
    assert call(monkeypatch, "view", ITEM_LOOP, "--port", 9123, "--no-browser") == 0
    assert seen[0][:4] == ["vizviewer", "--port", "9123", "--server_only"]
    assert Path(seen[0][-1]).name == "cpu-item-loop.json"
    assert not Path(seen[0][-1]).exists()


def test_view_names_the_package_when_the_viewer_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(view.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(view.shutil, "which", lambda name: None)
    assert call(monkeypatch, "view", ITEM_LOOP) == 2
    assert 'pip install "lightning-perf[trace]"' in capsys.readouterr().err


def test_findings_come_with_their_fixes_when_a_trace_is_diagnosed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = FIXTURES / "cpu-attention.json.gz"
    assert call(monkeypatch, "analyze", trace, "--json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert "PD309" in {finding["code"] for finding in record["findings"]}
    assert record["verdict"]["code"] is not None
    assert call(monkeypatch, "analyze", trace) == 0
    shown = capsys.readouterr().out
    assert "PD309 materialised-attention" in shown
    assert "fix   use torch's scaled_dot_product_attention" in shown
    assert call(monkeypatch, "analyze", trace, "--markdown", "--ignore", "PD3") == 0
    assert "PD309" not in capsys.readouterr().out


def test_unknown_codes_are_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "analyze", "nowhere.json", "--select", "PD31x") == 2
    assert "PD31x" in capsys.readouterr().err


@pytest.mark.parametrize("form", [(), ("--markdown",)])
def test_ranks_are_compared_when_their_traces_share_collectives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, form: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for rank in range(3):
        save(tmp_path, rank, 3, rank_events(rank, [[2000.0, 2000.0, 5000.0]]))
    assert call(monkeypatch, "analyze", tmp_path, *form) == 0
    shown = " ".join(capsys.readouterr().out.replace("\\", "").split())
    assert "3 ranks, mean of 3 steps (3 collectives matched" in shown
    assert "Collectives, from the arrival of the last rank" in shown
    assert "Rank 2 slows down all others" in shown
    assert "others wait" in shown


def test_only_some_of_many_traces_are_shown_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    arrivals = [2000.0] * 20
    arrivals[13] = 5000.0
    for rank in range(20):
        save(tmp_path, rank, 20, rank_events(rank, [arrivals]))
    assert call(monkeypatch, "analyze", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "20 traces, the first 16" in shown
    assert [line.split()[0] for line in shown.splitlines() if " · rank " in line] == [
        "rank0.pt.trace.json.gz",
        "rank13.pt.trace.json.gz",
    ]
    assert "\nmedian" in shown


def test_unreadable_trace_is_named_by_its_url_when_it_is_remote(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = fsspec.filesystem("memory")
    for name, content in (("cut.json.gz", gzip.compress(b"[1, 2]")[:-9]), ("none.json", b"[]")):
        storage.pipe_file(f"/traces/{name}", content)
        assert call(monkeypatch, "analyze", f"memory://traces/{name}") == 2
        assert f"memory://traces/{name} " in capsys.readouterr().err


def test_text_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert call(monkeypatch, "analyze", ITEM_LOOP) == 0
    prose = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("    ")]
    assert max(map(len, prose)) <= 80
