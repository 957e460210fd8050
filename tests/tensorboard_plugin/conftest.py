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
    """The plugin over a log directory, asked as TensorBoard would ask it."""

    def __init__(self, logdir: Path, provider: Any = None) -> None:
        context = SimpleNamespace(logdir=str(logdir), flags=None, data_provider=provider)
        self.plugin = PerfDoctorPlugin(context)
        [(route, app)] = self.plugin.get_plugin_apps().items()
        assert route == "/*"
        self.client = Client(app)

    def get(self, route: str, **parameters: Any) -> TestResponse:
        return self.client.get(f"/data/plugin/perfdoctor/{route}", query_string=parameters)

    def json(self, route: str, status: int = 200, **parameters: Any) -> Any:
        """The answer as strict JSON: NaN and infinity are refused."""
        response = self.get(route, **parameters)
        assert response.status_code == status, response.get_data(as_text=True)
        assert response.content_type == "application/json"
        return json.loads(response.get_data(), parse_constant=_refused)

    def runs(self) -> list[str]:
        return [run["id"] for run in self.json("runs")["runs"]]

    def until(self, condition: Callable[[], Any]) -> Any:
        """What ``condition`` answers, once that is true."""
        for _ in range(600):
            answer = condition()
            if answer:
                return answer
            time.sleep(0.05)
        raise AssertionError("it never came true")

    def ready(self, route: str, **parameters: Any) -> Any:
        """Return the response after loading has finished."""
        self.until(lambda: self.json(route, **parameters)["state"] != "reading")
        told = self.json(route, **parameters)
        assert told["state"] == "ready", told
        return told

    def blocks(self, view: str, run: str, **parameters: Any) -> list[dict[str, Any]]:
        return parts(self.ready("view", view=view, run=run, **parameters))


def parts(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of all sections of an answer."""
    return [part for section in told["sections"] for part in section["parts"]]


def _refused(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def tab(tmp_path: Path) -> Callable[..., Tab]:
    """Opens the tab over the test's own folder."""

    def open_tab(**arguments: Any) -> Tab:
        return Tab(tmp_path, **arguments)

    return open_tab


def table(blocks: list[dict[str, Any]], key: str) -> dict[str, list[Any]]:
    """The columns of a table by head: values where it has them, else text."""
    [found] = [block for block in blocks if block["type"] == "table" and block["key"] == key]
    return {
        head: [row[i][1] if isinstance(row[i], list) else row[i] for row in found["rows"]]
        for i, head in enumerate(found["heads"])
    }
