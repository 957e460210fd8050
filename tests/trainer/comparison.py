"""Compare a training with the same training under PerfDoctor, each in a process of its own."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.fuzzing import IS_TORTURE

from .kinds import Kind

_IGNORED = (
    # Times and random names, which also differ between two bare runs.
    r"\._last_val_time$",
    r"\._last_time_checked$",
    r"\._(start|end)_time\b",
    r"\.(start_t|last_print_t)$",
    r"\._renderable_cache\b",
    r"_ckpt_path$",
    # Requested figures of PerfDoctor, in progress bars and loggers.
    r"_progress_bar\.(sp\b|postfix$)",
    r"\._metric_component\._metrics\['(perf|wait|data_wait)'\]$",
    r"\._experiment\.metrics_keys\b",
)
"""Observations that may differ, whatever the kind."""


class Server:
    """A process that has imported everything and forks one process per run.

    Args:
        folder: Empty folder for the runs' files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bare: dict[str, Any] = {}
        tests = Path(__file__).parents[1]
        path = os.pathsep.join(filter(None, (str(tests), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._log = (folder / "server.txt").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.comparison_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=tests,
            env=environment,
            text=True,
        )
        self._receive()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the server of runs ended: {(self._folder / 'server.txt').read_text()[-3000:]}")
        return json.loads(line)

    def run(self, kind: Kind, configuration: str) -> dict[str, Any]:
        """Return what was observed of one run, which must end in time and leave no process behind.

        Args:
            kind: The kind of training.
            configuration: ``"bare"``, or how PerfDoctor is set.
        """
        # The same path for all, so that paths in messages do not differ.
        folder = self._folder / "run" / "folder"
        request = {
            "kind": kind.name,
            "configuration": configuration,
            "folder": str(folder),
            "fresh": kind.fresh,
            "limit_s": kind.limit_s,
            "probes": kind.probes or IS_TORTURE,
        }
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._receive()
        output = (folder.parent / "output.txt").read_text(errors="replace") if folder.exists() else ""
        about = f"{kind.name!r}, {configuration}"
        if answer["status"] is None:
            pytest.fail(f"{about}: still running after {kind.limit_s} s\n{output[-8000:]}", pytrace=False)
        result = folder.parent / "result.pickle"
        if answer["status"] != 0 or not result.exists():
            pytest.fail(f"{about}: exit status {answer['status']}\n{output[-8000:]}", pytrace=False)
        if answer["leftovers"]:
            pytest.fail(f"{about}: processes left behind: {answer['leftovers']}", pytrace=False)
        found = pickle.loads(result.read_bytes())
        if "skipped" in found:
            pytest.skip(found["skipped"])
        return {**found, "output": output, "wall_s": answer["wall_s"]}

    def bare(self, kind: Kind) -> dict[str, Any]:
        """Return what was observed of the run without PerfDoctor, which takes place once."""
        if kind.name not in self._bare:
            self._bare[kind.name] = self.run(kind, "bare")
        return self._bare[kind.name]


def differences(one: Any, other: Any, ignore: tuple[str, ...] = ()) -> list[str]:
    """Return what differs between two observations, without what two bare runs differ in."""
    patterns = [re.compile(pattern) for pattern in (*_IGNORED, *ignore)]
    found = [(path, f"{path}: {before} -> {after}") for path, before, after in _differences("", one, other)]
    # A pattern with a colon is of the path and the values.
    return [line for path, line in found if not any(p.search(line if ": " in p.pattern else path) for p in patterns)]


def _differences(path: str, one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            if key in one and key in other:
                yield from _differences(f"{path}.{key}".lstrip("."), one[key], other[key])
            else:
                missing = "(nothing)"
                yield f"{path}.{key}", repr(one[key]) if key in one else missing, repr(other.get(key, missing))
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for index, (before, after) in enumerate(zip(one, other, strict=True)):
            yield from _differences(f"{path}[{index}]", before, after)
    elif isinstance(one, list) and isinstance(other, list):
        for value in one:
            if value not in other:
                yield path, repr(value), "(nothing)"
        for value in other:
            if value not in one:
                yield path, "(nothing)", repr(value)
        if sorted(map(repr, one)) == sorted(map(repr, other)) or len({*map(repr, one)} ^ {*map(repr, other)}) == 0:
            yield f"{path} (number or order)", repr(len(one)), repr(len(other))
    elif one != other:
        yield path, repr(one), repr(other)


def assert_unchanged(server: Server, kind: Kind, configuration: str) -> None:
    """Assert that PerfDoctor changed nothing of a training but for its own files and figures.

    Args:
        server: Runs the trainings.
        kind: The kind of training.
        configuration: How PerfDoctor is set.
    """
    bare = server.bare(kind)
    measured = server.run(kind, configuration)
    failed = {probe: error for probe, error in measured["probes_off"].items() if probe not in kind.may_fail}
    found = differences(bare["observed"], measured["observed"], kind.ignore)
    if not found:
        assert failed == {}, f"{kind.name!r}, {configuration}: probes failed: {failed}"
        return
    if differences(bare["observed"], server.run(kind, "bare")["observed"], kind.ignore):
        found.insert(0, "(two bare runs differ as well: this kind is not deterministic)")
    shown = "\n  ".join(one[:400] for one in found[:40])
    pytest.fail(
        f"{kind.name!r}, {configuration}: {len(found)} differences (bare -> with PerfDoctor)\n  {shown}\n"
        f"{measured['traceback'][-4000:]}\n{measured['output'][-3000:]}",
        pytrace=False,
    )
