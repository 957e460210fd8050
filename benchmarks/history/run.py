"""Measure the history of runs: false alarms, regressions found, causes, cost, and what kills leave.

    python benchmarks/history/run.py [--pairs N] [--real FOLDER] [--write]

Trainings are simulated (fixed seeds), except those of --real and of the costs. --write also writes
docs/benchmarks/history.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf.history.entry import reduced
from lightning_perf.history.run_history import MIN_STEPS
from lightning_perf.history.store import History
from lightning_perf.history.suspects import suspects
from lightning_perf.records import (
    LoaderSettings,
    Machine,
    Provenance,
    Session,
    Settings,
    TorchSettings,
    TrainerSettings,
)
from lightning_perf.stats.comparison import compare_sessions

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks" / "comparison"))
import real_runs  # noqa: E402
import sequences  # noqa: E402
from simulated_sessions import simulated  # noqa: E402

PAGE = REPOSITORY / "docs" / "benchmarks" / "history.md"
N_RUNS, N_WRITERS, WRITING_S = 10_000, 16, 20.0
FIRST = {"n_epochs": 1, "steps_an_epoch": MIN_STEPS + 1}
"""A run when it is compared for the first time."""

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "num_workers": ({"loader": {"num_workers": 4}}, {"more_s": {"data_wait": 0.006}}),
    "precision": ({"trainer": {"precision": "32-true"}}, {"more_s": {"forward": 0.003, "backward": 0.004}}),
    "n_threads": ({"torch": {"n_threads": 2}}, {"more_s": {"forward": 0.002, "backward": 0.003, "optimizer": 0.001}}),
    "torch": ({"versions": {"torch": "2.10.0"}}, {"more_s": {"forward": 0.002, "backward": 0.004, "optimizer": 0.001}}),
    "log_every_n_steps": ({"trainer": {"log_every_n_steps": 1}}, {"more_s": {"logging": 0.006}}),
    "batch_size": ({"loader": {"batch_size": 16}}, {"slower": 0.62}),
    "val_check_interval": ({"trainer": {"val_check_interval": 0.25}}, {"validation_s": 4.0}),
    "dataset": ({"provenance": {"dataset": "outside the project (1f2e3d4c)"}}, {"more_s": {"data_wait": 0.006}}),
}
"""By the setting that is changed: the change, and what it does."""

OTHERS: tuple[dict[str, Any], ...] = (
    {"trainer": {"gradient_clip_val": 1.0}},
    {"trainer": {"callbacks": ("EarlyStopping",)}},
    {"versions": {"torchmetrics": "1.8"}},
    {"versions": {"lightning": "2.7"}},
)
"""Changes without an effect on the time."""


def main() -> None:
    """Measure; print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000, help="simulated sequences of runs per row")
    parser.add_argument("--causes", type=int, default=100, help="simulated runs per changed setting")
    parser.add_argument(
        "--real", type=Path, nargs="+", metavar="FOLDER", help="real runs, made where it lacks (12 min)"
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    for folder in arguments.real or ():
        real_runs.make(folder)
    page = _page(arguments.pairs, arguments.causes, arguments.real)
    print(page)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")


def _page(n: int, n_causes: int, folders: list[Path] | None) -> str:
    real = real_runs.section(folders, _slower) if folders else real_runs.kept_section(PAGE)
    causes = "\n".join(f"| `{name}` | {' | '.join(map(str, _causes(name, n_causes)))} |" for name in KINDS)
    with tempfile.TemporaryDirectory() as folder:
        cost = "\n".join(f"| {name} | {figure} |" for name, figure in (*_cost(Path(folder)), *_kills(Path(folder))))
    return f"""# The history of runs

*Written by `benchmarks/history/run.py`: {n:,} simulated sequences of runs per row of the first table (fixed seeds),
{n_causes} runs per row of the second; the last table is one machine with {os.cpu_count()} cores.*

{sequences.section(n)}

{real}

## Causes

One setting is changed together with the commit and two changes that have no effect. *Named first*: of {n_causes} runs
against five earlier ones. In the last column, the two changes without an effect are drawn from the other settings of
this table, also from those that act on the same phases, but for the batch size: half of it in the same time is an
effect. Times cannot tell `torch` from `n_threads`, or `dataset` from `num_workers`: they act on the same phases.

| changed | named first | among changes of all kinds |
|:--|--:|--:|
{causes}

## Cost, and what kills leave

Times are CPU times, medians of nine.

| | |
|:--|--:|
{cost}
"""


# -- simulations ----------------------------------------------------------------


def _slower(session: Session, factor: float, phase: str = "") -> Session:
    """Return a session whose steps take longer by a factor, because of all phases or of one."""
    replace, steady = msgspec.structs.replace, session.steady

    def longer(phases: dict[str, float], whole_s: float) -> dict[str, float]:
        if phase:
            return {**phases, phase: phases.get(phase, 0.0) + (factor - 1) * whole_s}
        return {name: factor * each for name, each in phases.items()}

    timeline = tuple(
        replace(each, step_s=factor * each.step_s, phases=longer(each.phases, each.step_s)) for each in steady.timeline
    )
    total_s = longer({name: each.total_s for name, each in steady.phases.items()}, steady.span_s)
    phases = {
        name: replace(each, total_s=total_s[name], share=total_s[name] / sum(total_s.values()))
        for name, each in steady.phases.items()
    }
    epochs = tuple(replace(each, wall_s=factor * each.wall_s) for each in session.epochs)
    return replace(session, steady=replace(steady, timeline=timeline, phases=phases), epochs=epochs)


def _causes(name: str, n: int) -> Iterator[int]:
    for is_hard in (False, True):
        found = 0
        for i in range(n):
            rng = random.Random(f"{name} {i}")
            change, effect = KINDS[name]
            # Half the batch size in the same time would be an effect.
            hard = [each for kind, (each, _) in KINDS.items() if kind not in (name, "batch_size")]
            others = hard if is_hard else list(OTHERS)
            changes = [change, {"provenance": {"commit": "b" * 40}}, *rng.sample(others, 2)]
            base = [reduced(simulated(100 * i + k, **_settings([]))) for k in range(5)]
            new = reduced(simulated(100 * i + 99, **_settings(changes), **effect))
            comparison = compare_sessions([("", one) for one in base], [("", new)])
            ranked = suspects(base, [new], comparison)
            found += ranked[0].name == name
        yield found


def _settings(changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return fields of a session, with changes."""
    merged: dict[str, dict[str, Any]] = {
        "loader": {"batch_size": 32, "num_workers": 8},
        "trainer": {"precision": "bf16-mixed", "log_every_n_steps": 50, "val_check_interval": 1.0},
        "torch": {"n_threads": 8},
        "versions": {"torch": "2.9.0", "lightning": "2.6.0", "torchmetrics": "1.7"},
        "provenance": {"commit": "a" * 40, "dataset": "data"},
    }
    for change in changes:
        for part, values in change.items():
            merged[part] = {**merged[part], **values}
    loader = LoaderSettings(stage="train", index=0, class_name="DataLoader", is_plain=True, **merged["loader"])
    return {
        "settings": Settings(
            trainer=TrainerSettings(**merged["trainer"]), loaders=(loader,), torch=TorchSettings(**merged["torch"])
        ),
        "machine": Machine(os="Linux", python="3.11", cpu_model="made up", versions=merged["versions"]),
        "provenance": Provenance(**merged["provenance"]),
    }


# -- this machine ----------------------------------------------------------------

START = """
import sys
from time import process_time
import lightning_perf.reports.console, lightning_perf.stats.comparison, psutil, logging, tempfile, zlib
from lightning_perf import load
session = load(sys.argv[1])
start = process_time()
from lightning_perf.history.run_history import RunHistory
from lightning_perf.history.store import default_file
history = RunHistory(default_file())
opened = process_time()
assert len(history.earlier(session).runs) == 21
read = process_time()
history.news(session)
print(opened - start, read - opened, process_time() - read)
"""


def _cost(folder: Path) -> Iterator[tuple[str, str]]:
    file = folder / "history.db"
    session = simulated(1, **_settings([]))
    History(file).save(session)
    _fill(file, N_RUNS - 1)
    saved = simulated(2, id="new", **_settings([])).save(folder / "new")
    environment = {**os.environ, "LIGHTNING_PERF_HISTORY": str(file)}
    command = [sys.executable, "-c", START, str(saved)]
    runs = [subprocess.run(command, env=environment, check=True, capture_output=True).stdout for _ in range(9)]
    taken = [[1e3 * float(each) for each in run.split()] for run in runs]
    yield f"size of the file with {N_RUNS:,} runs", f"{file.stat().st_size / 2**20:.0f} MiB"
    yield "start of a run: imports", _ms([each[0] for each in taken])
    yield "first end of an epoch: reading the last 20 like runs", _ms([each[1] for each in taken])
    yield "comparing with earlier runs", _ms([each[2] for each in taken])
    history = History(file)
    yield "listing 20 runs", _ms([_timed(lambda: history.rows(20)) for _ in range(9)])
    yield f"listing {N_RUNS:,} runs", _ms([_timed(history.rows) for _ in range(9)])
    yield "saving a run", _ms([_timed(lambda: history.save(session)) for _ in range(9)])


def _fill(file: Path, n: int) -> None:
    """Copy the one row of a file under other ids and times; every tenth copy is of the same training."""
    [first] = History(file).same_training(simulated(2, **_settings([])), 1)
    with sqlite3.connect(file) as database:
        database.create_function("renamed", 1, lambda name: _renamed(first, name))
        database.executemany(
            "insert into runs select ?1, case when ?2 then key else ?3 end, ?4, status, model, n_steps, step_s, "
            "verdict, branch, commit_id, renamed(?1) from runs where id = '1'",
            [(f"copy{i}", i % 10 == 0, f"key{i % 50}", f"2025-01-01T{i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}Z")
             for i in range(n)],
        )  # fmt: skip
    database.close()


def _renamed(session: Session, name: str) -> bytes:
    run = msgspec.structs.replace(session.run, id=name)
    return zlib.compress(msgspec.json.encode(msgspec.structs.replace(session, run=run)))


def _kills(folder: Path) -> Iterator[tuple[str, str]]:
    """Let many processes save runs, kill each at a random time, and start it again."""
    file, rng = folder / "kills" / "history.db", random.Random(1)
    context = multiprocessing.get_context("fork")
    writers: dict[int, Any] = {}
    n_killed, end_s = 0, time.monotonic() + WRITING_S
    while time.monotonic() < end_s:
        for n in range(N_WRITERS):
            if n not in writers:
                writers[n] = context.Process(target=_write, args=(file, folder / f"said{n}", f"{n}-{n_killed}"))
                writers[n].start()
        time.sleep(rng.random() * 0.2)
        one = writers.pop(rng.randrange(N_WRITERS))
        one.kill()
        one.join()
        n_killed += 1
    for each in writers.values():
        each.kill()
        each.join()
    said = {name for n in range(N_WRITERS) for name in (folder / f"said{n}").read_text().splitlines()}
    lost = said - {row.id for row in History(file).rows()}
    with sqlite3.connect(file) as database:
        (state,) = database.execute("pragma integrity_check").fetchone()
    name = f"{N_WRITERS} processes saving for {WRITING_S:.0f} s, {n_killed + len(writers)} of them killed"
    yield name, f"{len(said):,} saved, {len(lost)} of these lost, integrity {state}"


def _write(file: Path, said: Path, name: str) -> None:
    session = reduced(simulated(1, **FIRST))
    with said.open("a") as lines:
        for i in range(1_000_000):
            one = msgspec.structs.replace(session, run=msgspec.structs.replace(session.run, id=f"{name}-{i}"))
            try:
                History(file).save(one)
            except sqlite3.OperationalError:  # locked for too long: not saved
                continue
            lines.write(f"{name}-{i}\n")
            lines.flush()


def _timed(function: Any) -> float:
    """Return the CPU time in ms: the wall time of some ms depends on what else runs on the machine."""
    start_s = time.process_time()
    function()
    return 1e3 * (time.process_time() - start_s)


def _ms(times_ms: list[float]) -> str:
    return f"{statistics.median(times_ms):.1f} ms (slowest {max(times_ms):.1f} ms)"


if __name__ == "__main__":
    main()
