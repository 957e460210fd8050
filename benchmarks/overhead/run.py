"""Measure PerfDoctor's overhead per training step next to its alternatives.

    python benchmarks/overhead/run.py                  print the table
    python benchmarks/overhead/run.py --write          and write docs/benchmarks/overhead.md
    python benchmarks/overhead/run.py --arms bare "PerfDoctor()" --rounds 10
    python benchmarks/overhead/run.py --within --write within one training, into docs/benchmarks/overhead-within.md

Method. Every arm is a real ``Trainer.fit`` of the same tiny model on the CPU with one torch thread, in a process of its
own (``arm.py``). All arms are started and warmed up first. Then they alternate in turns of 64 steps, in the order
A B C … C B A, while all others wait. A turn is timed inside the module, without its first three steps, when caches are
cold. A round has 32 turns per arm. Within each round, the mean step time of the base arm is subtracted from that of the
arm, so that disturbances longer than a turn affect both. The figure is the median of these differences over all rounds,
with a 95 % interval from order statistics. The CPU time of the process is reported next to the wall time, because
other programs disturb it less. A round has as many steps as PerfDoctor buffers before it aggregates them, so nearly
every round includes one aggregation.

Two processes of the same arm differ by several microseconds per step for as long as they live, because of their memory
layout. All arms are therefore restarted after every few rounds (``--starts``).

``--within`` measures only what the targets need, as exactly as possible: PerfDoctor, an empty callback and no callback
alternate within one training (``within.py``), restarted every two rounds. TraceML's launcher cannot be removed from a
running training, so it is measured next to its bare loop with no other arm alive: started, warmed up, timed for 4096
steps and ended, once per start.

TraceML runs in an environment of its own, created from PyPI on first use with this repository's constraints (so with
the same torch), as a callback and under its launcher with default settings. Its aggregator is another process and its
threads keep working while other arms run; neither is counted, which is in TraceML's favor.

``--simulate`` drives the probes directly with a fake clock for a million steps and reports memory and time; ``--parts``
reports the overhead of PerfDoctor's parts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import parts
import simulated
import within
from arm import ANSWER, ARM_VARIABLE, ARMS, CORE_VARIABLE, SOCKET_VARIABLE
from table import Comparison, Page, Turn, as_text, compare

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PAGE = REPOSITORY / "docs" / "benchmarks" / "overhead.md"
PAGE_WITHIN = REPOSITORY / "docs" / "benchmarks" / "overhead-within.md"

STEPS_PER_TURN = 64
TURNS_PER_ROUND = 32  # 2048 steps, as many as PerfDoctor buffers before it aggregates them
WARMUP_STEPS = 600  # include PerfDoctor's own warm-up, its first aggregation and its gradient check
STEPS_ALONE = 4096
ROUNDS_PER_START = 2  # within one training
TRACEML = "traceml-ai==0.5.0"
DEFAULT_VENV = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lightning-perf" / "traceml-venv"
START_TIMEOUT_S = 180.0

BASES = {
    "empty callback": "bare",
    "PerfDoctor(schedule=None, reports=())": "empty callback",
    "PerfDoctor()": "empty callback",
    "PerfDoctor(memory=False)": "empty callback",
    "SimpleProfiler": "bare",
    "PerfDoctor() and SimpleProfiler": "SimpleProfiler",
    "AdvancedProfiler": "bare",
    "PyTorchProfiler": "bare",
    "PerfDoctor() and logger": "logger",
    "DeviceStatsMonitor": "logger",
    "ThroughputMonitor": "logger",
    "TraceML callback": "bare, TraceML's environment",
    "TraceML launcher": "bare, TraceML's environment",
}
"""The base that each arm is compared with."""

Taken = dict[str, list[Turn]]
"""Arm → what a step took in each round, or in the warm-up after each start."""

DOCTORS = ("PerfDoctor(schedule=None, reports=())", "PerfDoctor()")
"""These are compared with the bare loop too."""


TRACEMLS = ("bare, TraceML's environment", "TraceML launcher")
"""What a quarter of is one of the targets."""


def is_traceml(arm: str) -> bool:
    """Return whether an arm needs TraceML's environment."""
    return "TraceML" in arm


class Runner:
    """The process of one arm, controlled by the driver."""

    def __init__(self, arm: str, venv: Path, folder: Path, core: int | None) -> None:
        self.arm = arm
        name = "".join(c if c.isalnum() else "_" for c in arm)
        self._output = (folder / f"{name}.log").open("w+b")
        path = str(folder / f"{name}.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(START_TIMEOUT_S)
            environment = {**os.environ, ARM_VARIABLE: arm, SOCKET_VARIABLE: path, "OMP_NUM_THREADS": "1"}
            if core is not None:
                environment[CORE_VARIABLE] = str(core)
            self._process = subprocess.Popen(
                self._command(venv, folder / name),
                env=environment,
                cwd=folder,
                stdout=self._output,
                stderr=subprocess.STDOUT,
            )
            try:
                self._connection, _ = listener.accept()
            except TimeoutError as error:
                self._process.kill()
                raise SystemExit(f"{arm!r} did not start within {START_TIMEOUT_S:.0f} s:\n{self.log()}") from error
        self._receive()

    def _command(self, venv: Path, folder: Path) -> list[str]:
        script = str(HERE / "arm.py")
        if self.arm == "TraceML launcher":
            return [str(venv / "bin" / "traceml"), "run", "--logs-dir", str(folder), script]
        return [str(venv / "bin" / "python") if is_traceml(self.arm) else sys.executable, script]

    def turn(self, n_steps: int) -> Turn:
        """Let the arm run ``n_steps`` steps; return microseconds per step."""
        self._connection.sendall(n_steps.to_bytes(4, "little"))
        wall_ns, process_ns = self._receive()
        return Turn(wall_ns / 1e3 / n_steps, process_ns / 1e3 / n_steps)

    def end(self) -> None:
        """End the training."""
        with contextlib.suppress(OSError):
            self._connection.sendall((0).to_bytes(4, "little"))
        self._connection.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._output.close()

    def log(self) -> str:
        """Return the end of the arm's output."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-2000:]

    def _receive(self) -> tuple[int, int]:
        answer = self._connection.recv(ANSWER.size, socket.MSG_WAITALL)
        if len(answer) < ANSWER.size:
            raise SystemExit(f"{self.arm!r} ended too early:\n{self.log()}")
        wall_ns, process_ns = ANSWER.unpack(answer)
        return wall_ns, process_ns


@contextlib.contextmanager
def running(arms: Sequence[str], venv: Path, core: int | None) -> Iterator[list[Runner]]:
    """Start all arms and end them on exit."""
    with tempfile.TemporaryDirectory() as folder:
        runners: list[Runner] = []
        try:
            for arm in arms:
                print(f"starting {arm}", file=sys.stderr)
                runners.append(Runner(arm, venv, Path(folder), core))
            yield runners
        finally:
            for runner in runners:
                runner.end()


def measure_with_restarts(
    arms: Sequence[str], n_starts: int, n_rounds: int, venv: Path, core: int | None
) -> tuple[Taken, Taken]:
    """Return times per arm and round, and per arm and warm-up, with rounds spread evenly over several starts."""
    taken: Taken = {arm: [] for arm in arms}
    warmups: Taken = {arm: [] for arm in arms}
    for start in range(n_starts):
        n_here = n_rounds // n_starts + (start < n_rounds % n_starts)
        with running(arms, venv, core) as runners:
            for runner in runners:
                warmups[runner.arm].append(runner.turn(WARMUP_STEPS))
            for arm, turns in measure(runners, n_here).items():
                taken[arm] += turns
    return taken, warmups


def measure_within(n_starts: int, venv: Path | None) -> Taken:
    """Return times per arm and round of arms that alternate within one training; for TraceML, per start.

    Args:
        n_starts: Number of times to start the training.
        venv: TraceML's environment; None to leave it out.
    """
    taken: Taken = {arm: [] for arm in within.ARMS}
    for number in range(n_starts):
        n_turns = ROUNDS_PER_START * TURNS_PER_ROUND * len(within.ARMS)
        done = subprocess.run(
            [sys.executable, str(HERE / "within.py"), str(n_turns)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"within.py failed:\n{done.stderr[-2000:]}")
        answer = json.loads(done.stdout.splitlines()[-1])
        for arm, turns in answer["taken_us"].items():
            other_threads_us = answer["thread_us"] if arm == within.ARMS[0] else 0.0
            for at in range(0, len(turns), TURNS_PER_ROUND):
                columns = zip(*turns[at : at + TURNS_PER_ROUND], strict=True)
                taken[arm].append(Turn(*(statistics.fmean(column) + other_threads_us for column in columns)))
        for arm in TRACEMLS if venv is not None else ():
            with running([arm], venv, None) as (runner,):
                runner.turn(WARMUP_STEPS)
                taken.setdefault(arm, []).append(runner.turn(STEPS_ALONE))
        print(f"\rstart {number + 1} of {n_starts}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return taken


def measure(runners: Sequence[Runner], n_rounds: int) -> Taken:
    """Return times per arm and round."""
    taken: Taken = {runner.arm: [] for runner in runners}
    for number in range(n_rounds):
        turns: dict[str, list[Turn]] = {runner.arm: [] for runner in runners}
        for _ in range(TURNS_PER_ROUND // 2):
            for runner in (*runners, *reversed(runners)):
                turns[runner.arm].append(runner.turn(STEPS_PER_TURN))
        for arm, of_arm in turns.items():
            taken[arm].append(Turn(*(statistics.fmean(column) for column in zip(*of_arm, strict=True))))
        print(f"\rround {number + 1} of {n_rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return taken


def comparisons(taken: Taken) -> list[Comparison]:
    """Return each arm compared with its base if both were measured; PerfDoctor also with the bare loop."""
    wanted = [(arm, BASES[arm]) for arm in taken if BASES.get(arm) in taken]
    wanted += [(arm, "bare") for arm in DOCTORS if arm in taken and "bare" in taken]
    return [compare(arm, base, taken[arm], taken[base]) for arm, base in wanted]


def traceml_venv(venv: Path) -> bool:
    """Create TraceML's environment if it is missing; print a message and return False if that fails."""
    if (venv / "bin" / "traceml").exists():
        return True
    print(f"installing {TRACEML} into {venv}", file=sys.stderr)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run(
            [*pip, "--constraint", str(REPOSITORY / "constraints.txt"), "torch", "lightning", TRACEML], check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"TraceML is left out: its environment could not be created ({error})", file=sys.stderr)
        return False
    return True


def parsed_arguments() -> argparse.Namespace:
    """Return the command line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="rounds of 2048 steps per arm (default: 20)")
    parser.add_argument("--starts", type=int, default=5, help="number of times to start all arms (default: 5)")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), metavar="ARM", help="only these: " + ", ".join(ARMS))
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="TraceML's environment (default: %(default)s)")
    parser.add_argument("--no-traceml", action="store_true", help="leave TraceML out")
    parser.add_argument("--core", type=int, help="CPU core to pin the arms to")
    parser.add_argument("--within", action="store_true", help="alternate within one training; two rounds per start")
    parser.add_argument("--write", action="store_true", help="write the page of the docs")
    parser.add_argument("--simulate", type=int, nargs="?", const=1_000_000, metavar="STEPS", help="simulate only")
    parser.add_argument("--parts", action="store_true", help="the parts only")
    return parser.parse_args()


def main() -> None:
    """Run the requested measurements."""
    arguments = parsed_arguments()
    if arguments.simulate:
        print(simulated.as_text(simulated.run(arguments.simulate)))
        return
    if arguments.parts:
        print(parts.as_text(parts.measure()))
        return
    arms = arguments.arms or list(ARMS)
    wants_traceml = not arguments.no_traceml and any(map(is_traceml, arms)) and traceml_venv(arguments.venv)
    if arguments.within:
        taken = measure_within(arguments.starts, arguments.venv if wants_traceml else None)
        found = comparisons(taken)
        print(as_text(taken, found, [], WARMUP_STEPS))
        if arguments.write:
            Page(taken, found, [], WARMUP_STEPS, arguments.venv).write_within(PAGE_WITHIN, arguments.starts)
        return
    if not wants_traceml:
        arms = [arm for arm in arms if not is_traceml(arm)]
    n_starts = max(1, min(arguments.starts, arguments.rounds))
    taken, warmups = measure_with_restarts(arms, n_starts, arguments.rounds, arguments.venv, arguments.core)
    found = comparisons(taken)
    once = comparisons({arm: warmups[arm] for arm in arms if arm in (*DOCTORS, "empty callback")})
    print(as_text(taken, found, once, WARMUP_STEPS))
    if arguments.write:
        page = Page(taken, found, once, WARMUP_STEPS, arguments.venv)
        page.write(PAGE, n_starts, simulated.run(1_000_000), parts.measure())


if __name__ == "__main__":
    main()
