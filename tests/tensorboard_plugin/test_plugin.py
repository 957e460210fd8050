"""The plugin in TensorBoard itself; if it fails, other tabs still work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from reports.sessions import starved
from tensorboard import default
from tensorboard.backend.application import TensorBoardWSGIApp
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins import base_plugin
from torch.utils.tensorboard import SummaryWriter
from werkzeug.test import Client

from lightning_perf.reports.tensorboard import SessionWriter
from lightning_perf.tensorboard_plugin.library import _trace_beside
from lightning_perf.tensorboard_plugin.plugin import PerfDoctorPlugin

from .conftest import parts

Board = Callable[[], Client]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Return a function that opens TensorBoard, with its own plugins and ours, for a run with one scalar."""
    with SummaryWriter(tmp_path / "run") as writer:
        writer.add_scalar("loss", 0.5, 1)

    def open_board() -> Client:
        multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
        multiplexer.Reload()
        flags = _Flags(logdir=str(tmp_path))
        plugins = [*default.get_static_plugins(), PerfDoctorPlugin]
        provider = MultiplexerDataProvider(multiplexer, str(tmp_path))
        return Client(TensorBoardWSGIApp(flags, plugins, data_provider=provider))

    return open_board


class _Flags:
    """Fake TensorBoard flags; unset ones are None."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update({"path_prefix": "", "purge_orphaned_data": True, "samples_per_plugin": {}, **given})

    def __getattr__(self, name: str) -> None:
        return None


def enabled(client: Client, plugin: str) -> bool:
    return bool(client.get("/data/plugins_listing").json[plugin]["enabled"])


def has_scalars(client: Client) -> bool:
    response = client.get("/data/plugin/scalars/tags")
    return response.status_code == 200 and "loss" in response.json["run"]


def test_tab_is_off_when_there_is_nothing_to_show(board: Board) -> None:
    client = board()
    assert not enabled(client, "perfdoctor")
    assert enabled(client, "scalars")


def test_tab_is_on_when_an_event_file_holds_a_session(board: Board, tmp_path: Path) -> None:
    session = starved()
    with SummaryWriter(tmp_path / "run") as writer:
        assert SessionWriter().write(writer, session, 7)
    client = board()
    assert enabled(client, "perfdoctor")
    [run] = client.get("/data/plugin/perfdoctor/runs").json["runs"]
    assert run["label"] == "run (event file)"
    reply = client.get("/data/plugin/perfdoctor/view", query_string={"run": run["id"], "view": "overview"}).json
    assert [part["code"] for part in parts(reply) if part["type"] == "finding"] == [
        finding.code for finding in session.findings
    ]
    assert has_scalars(client)


def test_tab_is_active_when_a_session_is_in_the_log_directory(board: Board, tmp_path: Path) -> None:
    starved().save(tmp_path / "run")
    assert enabled(board(), "perfdoctor")


def test_other_tabs_work_when_the_tab_cannot_be_imported(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starved().save(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "lightning_perf.tensorboard_plugin.app", None)
    client = board()
    assert has_scalars(client)
    assert not enabled(client, "perfdoctor")
    assert client.get("/data/plugin/perfdoctor/runs").status_code == 500
    page = client.get("/data/plugin/perfdoctor/index.js")
    assert page.status_code == 200
    assert "export async function render()" in page.text
    assert "PerfDoctor's tab failed" in page.text


def test_other_tabs_work_when_a_route_raises(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("lightning_perf.tensorboard_plugin.app.App.__call__", fails)
    monkeypatch.setattr("lightning_perf.tensorboard_plugin.app.App.is_active", fails)
    client = board()
    assert client.get("/data/plugin/perfdoctor/runs").status_code == 500
    assert not enabled(client, "perfdoctor")
    assert has_scalars(client)


def test_other_tabs_work_when_the_context_is_empty() -> None:
    plugin = PerfDoctorPlugin(base_plugin.TBContext())
    assert not plugin.is_active()
    assert Client(plugin.get_plugin_apps()["/*"]).get("/data/plugin/perfdoctor/runs").json["runs"] == []


def test_the_old_tab_is_warned_of_once_when_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    plugin = PerfDoctorPlugin(base_plugin.TBContext())
    assert not plugin.is_active()
    assert "torch-tb-profiler" not in caplog.text
    (tmp_path / "torch_tb_profiler.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    plugin = PerfDoctorPlugin(base_plugin.TBContext())
    for _ in range(3):
        plugin.is_active()
    assert caplog.text.count("torch-tb-profiler is installed") == 1


def test_metadata_name_the_tab_and_its_page() -> None:
    about = PerfDoctorPlugin(base_plugin.TBContext()).frontend_metadata()
    assert (about.tab_name, about.es_module_path) == ("PerfDoctor", "/index.js")


def test_tensorboard_finds_the_plugin() -> None:
    [entry] = [one for one in entry_points(group="tensorboard_plugins") if one.name == "perfdoctor"]
    assert entry.value == "lightning_perf.tensorboard_plugin.plugin:PerfDoctorPlugin"
    assert entry.load() is PerfDoctorPlugin


def test_plugin_imports_nothing_of_others_and_the_whole_tab_neither_torch_nor_lightning() -> None:
    code = """
import sys
import tensorboard.plugins.base_plugin
before = set(sys.modules)
import lightning_perf.tensorboard_plugin.plugin
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names))
import lightning_perf.tensorboard_plugin.app, lightning_perf.tensorboard_plugin.views
import lightning_perf.tensorboard_plugin.diff, lightning_perf.reports.figures, lightning_perf.traces
print([name for name in ("torch", "lightning", "pytorch_lightning", "tensorflow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["['lightning_perf']", "[]"]


def test_trace_beside_a_session_is_no_link_out_of_its_folder(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "run"
    folder.mkdir()
    for file in (secret, folder / "own.pt.trace.json"):
        file.write_text("{}")
    (folder / "link.pt.trace.json").symlink_to(secret)
    session = str(folder / "perf_session.json")
    assert _trace_beside(session, "own.pt.trace.json") == str(folder / "own.pt.trace.json")
    assert _trace_beside(session, "link.pt.trace.json") is None
