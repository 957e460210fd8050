"""The path of a batch that ``docs/explanation/architecture.md`` draws is the one that the code takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import lightning_perf
from lightning_perf import PerfDoctor

from .conftest import Make
from .models import Sleeps, Tiny, loader

PACKAGE = Path(lightning_perf.__file__).parent
PAGE = PACKAGE.parent / "docs" / "explanation" / "architecture.md"
MAX_HOPS = 16
MAX_LINES = 400


def drawn_hops() -> list[tuple[str, str]]:
    """File and function of each hop, in order."""
    found = re.findall(r'h\d+\["(\d+) ([\w/]+\.py): ([\w.]+)"\]', PAGE.read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in found] == list(range(1, len(found) + 1))
    return [(file, name) for _, file, name in found]


def calls_of(function: Callable[[], Any], hops: Container[tuple[str, str]]) -> list[tuple[str, str]]:
    """The calls of these functions while ``function`` runs, in order."""
    calls: list[tuple[str, str]] = []
    names: dict[Any, tuple[str, str]] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            if code not in names:
                owner = frame.f_locals.get("self")
                class_name = next((c.__name__ for c in type(owner).__mro__ if _has(c, code)), "") if owner else ""
                file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
                names[code] = (file, f"{class_name}.{code.co_name}".lstrip("."))
            if names[code] in hops:
                calls.append(names[code])

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def _has(owner: type, code: Any) -> bool:
    return any(getattr(value, "__code__", None) is code for value in vars(owner).values())


def test_batch_takes_the_path_that_is_drawn(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=None, reports=("console",), options={"every_n_epochs": 99, "host_lines": False})
    trainer = make_trainer(doctor)
    hops = drawn_hops()
    assert 8 <= len(hops) <= MAX_HOPS
    calls = calls_of(lambda: trainer.fit(Tiny(), loader(20, Sleeps(fetch=0.002))), set(hops))
    assert [hop for hop in hops if hop not in calls] == []
    following = iter(calls)
    assert all(hop in following for hop in hops), calls


def test_files_on_the_path_are_short() -> None:
    files = {"hooks.py", "run.py", "run_reports.py", "results.py", "options.py", "arguments.py", "probes/probe_set.py"}
    n_lines = {name: len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in files}
    assert {name: n for name, n in n_lines.items() if n > MAX_LINES} == {}
