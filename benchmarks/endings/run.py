"""What a killed, preempted or interrupted training leaves, and how much longer it takes to end with PerfDoctor.

Each training has a planted fault and one endless epoch. The first part ends one by each kind of signal after
``--seconds``, and asks ``lightning-perf report`` for the cause. The second part ends pairs of trainings, with and
without PerfDoctor and side by side, and compares the times from signal to exit, in an environment of SLURM with a fake
``scontrol``. The third part lists what the diagnoses within the epoch took.

Run: ``python benchmarks/endings/run.py [--seconds S] [--rounds N] [--write]`` (about ten minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from lightning_perf.records import Session, load_run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "endings.md"
TRAINING = Path(__file__).with_name("training.py")
PATIENCE_S = 90.0

CODES = {"samples": "PD101", "schedule": "PD512", "callback": "PD504", "none": ""}
"""The finding that names each planted fault."""


class Ending(NamedTuple):
    """How one training ends.

    Attributes:
        what: For the page.
        fault: What is planted.
        number: The signal.
        killed_rank: Which of two ranks gets it; None with one rank.
    """

    what: str
    fault: str
    number: signal.Signals
    killed_rank: int | None = None


ENDINGS = (
    Ending("SIGKILL", "samples", signal.SIGKILL),
    Ending("SIGTERM", "schedule", signal.SIGTERM),
    Ending("Ctrl-C", "callback", signal.SIGINT),
    Ending("SIGKILL of rank 1 of 2", "samples", signal.SIGKILL, 1),
    Ending("SIGKILL of rank 0 of 2", "samples", signal.SIGKILL, 0),
)


class Left(NamedTuple):
    """What a training left.

    Attributes:
        session: Its session; None if it left none.
        age_s: How old the session was at the signal, for one that could not write another.
        exit_s: Time from the signal to the end of the process.
        reported: What ``lightning-perf report`` prints; empty if it fails.
        is_requeued: Whether Lightning called ``scontrol``.
        diagnoses: Events of the diagnoses within the epoch: ``at_s``, ``n_steps``, ``wall_s``, ``cpu_s``.
        begun_s: When training began.
    """

    session: Session | None
    age_s: float
    exit_s: float
    reported: str
    is_requeued: bool
    diagnoses: list[dict[str, Any]]
    begun_s: float


def left_by(ending: Ending, seconds: float, is_measured: bool = True, with_slurm: bool = False) -> Left:
    """Train, send the signal, and return what is left."""
    with tempfile.TemporaryDirectory(prefix="endings-", ignore_cleanup_errors=True) as folder:
        return _left_by(Path(folder), ending, seconds, is_measured, with_slurm)


def _left_by(folder: Path, ending: Ending, seconds: float, is_measured: bool, with_slurm: bool) -> Left:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "LIGHTNING_PERF_HISTORY": str(folder / "history.db"),
        **(_slurm(folder) if with_slurm else {}),
    }
    command = [sys.executable, str(TRAINING), "--fault", ending.fault]
    command += [] if is_measured else ["--without"]
    command += [] if ending.killed_rank is None else ["--ranks", "2"]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(folder / "events.jsonl", process)
        time.sleep(seconds)
        if with_slurm:  # as SLURM does: first the signal to requeue, later the one to end
            process.send_signal(signal.SIGUSR1)
            _wait_for(folder / "requeued", process)
        target = process.pid
        if ending.killed_rank == 1:  # Lightning starts it from rank 0
            target = int(Path(f"/proc/{target}/task/{target}/children").read_text().split()[0])
        sent_s = time.time()
        os.kill(target, ending.number)
        process.wait(PATIENCE_S)
        exit_s = time.time() - sent_s
    except BaseException:
        print((folder / "log.txt").read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return _read(folder, sent_s, exit_s, environment)


def _read(folder: Path, sent_s: float, exit_s: float, environment: dict[str, str]) -> Left:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    session, age_s, reported = None, 0.0, ""
    files = list((folder / "out").rglob("perf_session*.json"))
    if files:
        session = load_run(folder / "out")
        age_s = max(0.0, sent_s - max(file.stat().st_mtime for file in files))
        asked = [sys.executable, "-m", "lightning_perf", "report", str(folder / "out")]
        done = subprocess.run(asked, capture_output=True, text=True, env=environment, check=False)
        reported = done.stdout if done.returncode == 0 else ""
    diagnoses = [event for event in events if event["name"] == "diagnosis"]
    return Left(session, age_s, exit_s, reported, (folder / "requeued").exists(), diagnoses, events[0]["at_s"])


def _slurm(folder: Path) -> dict[str, str]:
    """Return the environment of a job of one task, with a ``scontrol`` that only notes its call."""
    scontrol = folder / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {folder}/requeued\n')
    scontrol.chmod(0o755)
    names = {"JOB_ID": "7", "JOB_NAME": "train", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    path = {"PATH": f"{scontrol.parent}:{os.environ['PATH']}"}
    return {**path, **{f"SLURM_{name}": value for name, value in names.items()}, "SLURM_NODELIST": "localhost"}


def _wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not file.exists():
        if process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"no {file.name}: exit status {process.returncode}")
        time.sleep(0.02)


def ending_row(ending: Ending, left: Left) -> str:
    """Return a row of the first table."""
    session, code = left.session, CODES[ending.fault]
    if session is None:
        return f"| {ending.what} | {ending.fault} | no session | | | | |"
    first = session.findings[0].code if session.findings else ""
    is_named = code in left.reported
    return (
        f"| {ending.what} | {ending.fault} | `{session.run.status}` | {session.run.n_steps:,} | {left.age_s:.1f} "
        f"| {'yes' if is_named else 'no'} | {'yes' if first == code else f'no: {first}'} |"
    )


def diagnosis_rows(name: str, left: Left) -> list[tuple[str, float]]:
    """Return rows of the third table with the share of CPU time in the time since the last diagnosis."""
    rows, last_s = [], left.begun_s
    for event in left.diagnoses:
        since_s = event["at_s"] - event["wall_s"] - last_s
        share = event["cpu_s"] / since_s
        last_s = event["at_s"]
        text = f"| {name} | {event['n_steps']:,} | {since_s:.1f} | {1e3 * event['cpu_s']:.0f} | {share:.2%} |"
        rows.append((text, share))
    return rows


def main() -> None:
    """Run all parts; print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="training before each signal (default: 120)")
    parser.add_argument("--long", type=float, default=420.0, help="the long training of the third part (default: 420)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs per signal (default: 5)")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start this with Ctrl-C ignored
    with ThreadPoolExecutor(len(ENDINGS)) as pool:
        lefts = list(pool.map(lambda ending: left_by(ending, given.seconds), ENDINGS))
    rows = [ending_row(ending, left) for ending, left in zip(ENDINGS, lefts, strict=True)]
    print(*rows, sep="\n", flush=True)

    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(left_by, Ending("", "none", signal.SIGKILL), given.long)
        exits = [exit_row(*pair, given.rounds) for pair in (("SIGTERM", signal.SIGTERM), ("Ctrl-C", signal.SIGINT))]
        print(*exits, sep="\n", flush=True)
        named = [*zip((f"{ending.what}, {ending.fault}" for ending in ENDINGS), lefts, strict=True)]
        named.append(("quick steps", long.result()))
    costs = [row for name, left in named for row in diagnosis_rows(name, left)]
    page = page_of(given, rows, exits, costs)
    print(page)
    if given.write:
        PAGE.write_text(page, encoding="utf-8")


def exit_row(name: str, number: signal.Signals, rounds: int) -> str:
    """Return a row of the second table."""
    pairs: list[tuple[Left, Left]] = []
    for _ in range(rounds):
        with ThreadPoolExecutor(2) as pool:
            one = Ending(name, "samples", number)
            measured, bare = (pool.submit(left_by, one, 20.0, is_measured, True) for is_measured in (True, False))
            pairs.append((measured.result(), bare.result()))
    with_s, without_s = ([pair[i].exit_s for pair in pairs] for i in (0, 1))
    added_s = [a - b for a, b in zip(with_s, without_s, strict=True)]
    requeued = [sum(pair[i].is_requeued for pair in pairs) for i in (0, 1)]
    return (
        f"| {name} | {statistics.median(with_s):.2f} | {statistics.median(without_s):.2f} "
        f"| {statistics.median(added_s):.2f} ({min(added_s):.2f} to {max(added_s):.2f}) "
        f"| {requeued[0]} of {rounds} | {requeued[1]} of {rounds} |"
    )


def page_of(given: argparse.Namespace, rows: list[str], exits: list[str], costs: list[tuple[str, float]]) -> str:
    """Return the page."""
    largest = max((share for _, share in costs), default=0.0)
    lines = "\n"
    return f"""# Trainings that do not end by themselves

Written by `benchmarks/endings/run.py` with Python {platform.python_version()} on {os.cpu_count()} cores, which other
processes shared. Each training is one endless epoch (`max_steps`) on the CPU.

## What is left after {given.seconds:.0f} s of training

*Age* is the time from the last diagnosis to the signal for a run that could not write another one. By the schedule it
is at most half the time trained and at most five minutes, plus one step and, where a diagnosis takes over 3 s, up to
100 times its duration; before the first one (10 s and 200 steps, or 60 s and 20 steps) a killed run leaves none.
*Named*: `lightning-perf report` prints the code of the planted fault.

| ended by | planted fault | status | steps | age, s | named | first finding |
|:--|:--|:--|--:|--:|:--|:--|
{lines.join(rows)}

## Time from the signal to the end of the process

{given.rounds} pairs of trainings of 20 s, with and without PerfDoctor side by side, as jobs of SLURM: `SIGUSR1` first,
upon which Lightning calls `scontrol requeue`, then the signal. Medians; *added* has the smallest and largest
difference.
With `SIGTERM`, PerfDoctor writes the session and the console report, and measures nothing. Ctrl-C also makes the HTML
report, which these trainings ask for and the default does not.

| signal | with PerfDoctor, s | without, s | added, s | requeued with | requeued without |
|:--|--:|--:|--:|:--|:--|
{lines.join(exits)}

## Cost of a diagnosis within the epoch

CPU time of all threads during each diagnosis, with what is printed and written, over the time since the last one or
since the first step. Largest share: {largest:.2%}.

| training | steps | time since the last, s | CPU time, ms | share |
|:--|--:|--:|--:|--:|
{lines.join(text for text, _ in costs)}
"""


if __name__ == "__main__":
    main()
