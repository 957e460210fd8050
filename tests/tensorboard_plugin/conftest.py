from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from lightning_perf.tensorboard_plugin.plugin import PerfDoctorPlugin


class Tab:
    """The plugin for a log directory, with requests as TensorBoard sends them."""

    def __init__(self, logdir: Path, provider: Any = None) -> None:
        context = SimpleNamespace(logdir=str(logdir), flags=None, data_provider=provider)
        self.plugin = PerfDoctorPlugin(context)
        [(route, app)] = self.plugin.get_plugin_apps().items()
        assert route == "/*"
        self.client = Client(app)

    def get(self, route: str, **parameters: Any) -> TestResponse:
        return self.client.get(f"/data/plugin/perfdoctor/{route}", query_string=parameters)

    def json(self, route: str, status: int = 200, **parameters: Any) -> Any:
        """Return the response as strict JSON, without NaN and infinity."""
        response = self.get(route, **parameters)
        assert response.status_code == status, response.get_data(as_text=True)
        assert response.content_type == "application/json"
        return json.loads(response.get_data(), parse_constant=_refused)

    def runs(self) -> list[str]:
        return [run["id"] for run in self.json("runs")["runs"]]

    def until(self, condition: Callable[[], Any]) -> Any:
        """Return the result of ``condition`` once it is true."""
        for _ in range(600):
            result = condition()
            if result:
                return result
            time.sleep(0.05)
        raise AssertionError("the condition did not become true within 30 s")

    def ready(self, route: str, **parameters: Any) -> Any:
        """Return the response after loading has finished."""
        self.until(lambda: self.json(route, **parameters)["state"] != "reading")
        reply = self.json(route, **parameters)
        assert reply["state"] == "ready", reply
        return reply

    def blocks(self, view: str, run: str, **parameters: Any) -> list[dict[str, Any]]:
        return parts(self.ready("view", view=view, run=run, **parameters))


def parts(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of all sections of a response."""
    return [part for section in reply["sections"] for part in section["parts"]]


def _refused(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def tab(tmp_path: Path) -> Callable[..., Tab]:
    """Return a function that opens the tab for the folder of the test."""

    def open_tab(**arguments: Any) -> Tab:
        return Tab(tmp_path, **arguments)

    return open_tab


def table(blocks: list[dict[str, Any]], key: str) -> dict[str, list[Any]]:
    """Return the columns of a table by head: values where cells have them, else text."""
    [found] = [block for block in blocks if block["type"] == "table" and block["key"] == key]
    return {
        head: [row[i][1] if isinstance(row[i], list) else row[i] for row in found["rows"]]
        for i, head in enumerate(found["heads"])
    }
