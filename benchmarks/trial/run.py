"""Check verdicts of ``lightning-perf trial`` on scripts with known faults and planted outcomes.

- ``outcomes``, three rounds in a row: treatments with planted outcomes. The script turns them into no change, a
  slowdown, a crash, a hang, excessive memory, and a NaN loss.
- ``ladder``: a script with several faults. The ladder must reach 2x in at least three
  rungs, and its flags, pasted into the script and timed by the script itself, must give the same speedup within 10 %.
  A fault that takes little of a step may be inconclusive when treated alone.
- ``sleeping``: the same script, in which only the dataset is slow (it sleeps). Workers must make it faster.
- ``logging``: the same script without anomaly detection. Logging every 50th step instead of each must make it faster.
- ``matmul``: bf16 must make a stack of wide layers faster. Skipped if the CPU has no fast bf16.
- ``compile``: must make a long chain of element-wise operations faster.
- ``tiny``: compiling must slow down a loop of tiny operations.

Run: ``python benchmarks/trial/run.py [CASE...] [--rounds N] [--write]`` on an otherwise idle machine: about four
minutes per round of ``outcomes``, seven to twenty for ``ladder``, one or two for each of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lightning_perf import measure_ceilings
from lightning_perf.stats.roofline import lower_precision_speedup

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
MANY_FAULTS = SCRIPTS / "many_faults.py"
PAGE = HERE.parents[1] / "docs" / "benchmarks" / "trial.md"
OUTCOMES = {
    "log-every-n=101": ("no_change", ""),
    "log-every-n=102": ("regressed", ""),
    "log-every-n=103": ("failed", "planted: missing kernel"),
    "log-every-n=104": ("failed", "time limit"),
    "log-every-n=105": ("failed", "GiB of memory"),
    "log-every-n=106": ("failed", "the loss became nan"),
}
"""Expected verdict of each treatment, and text that its reason must contain."""

OUTCOMES_LIMITS = ("--steps", "120", "--repeats", "8", "--time-limit", "20", "--memory-limit", "2G")
LADDER_LIMITS = ("--steps", "200", "--repeats", "3")
OUTSIDE_STEPS, OUTSIDE_RUNS = 300, 3
"""Enough steps that one log more or less in the timed half changes the mean by less than 1 %."""

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        case: Name of the case.
        is_met: Whether the result is as expected.
        result: The result.
        wall_s: Duration in seconds.
        date: Day of the measurement.
    """

    case: str
    is_met: bool
    result: str
    wall_s: float
    date: str


def trial(script: Path, *options: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Run a trial of a script with these arguments; return its record."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lightning_perf", "trial", "--out", f"{folder}/out", "--json", *options]
        done = subprocess.run(
            [*command, "--", sys.executable, str(script), *arguments],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        record: dict[str, Any] = json.loads(done.stdout)
        return record


def outside_s(trainer: dict[str, Any], loader: dict[str, Any], statements: str) -> float:
    """Return the seconds per step that the script itself measures, without the tool."""
    script = [sys.executable, str(MANY_FAULTS), "--steps", str(OUTSIDE_STEPS)]
    flags = ["--trainer", json.dumps(trainer), "--loader", json.dumps(loader), "--statements", statements]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*script, *flags], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True
        )
    return float(done.stdout.rpartition("step_s=")[2].split()[0])


def ladder() -> tuple[bool, str]:
    """Run a ladder trial, then time the script with the flags pasted."""
    record = trial(MANY_FAULTS, *LADDER_LIMITS)
    rungs = [rung for rung in record["ladder"] if rung["is_kept"] and rung["added"]]
    if not rungs:
        return False, "no rung was kept"
    alone = {arm["id"].partition("=")[0]: arm["verdict"] for arm in record["arms"] if len(arm["treatments"]) == 1}
    reached = rungs[-1]["speedup"]
    flags, loader = record["trainer_flags"], record["loader_args"]
    # Other statements; the arguments of Trainer(...) and DataLoader(...) are passed as flags.
    lines = [line for line in record["code"].splitlines() if not line.startswith(("Trainer(", "DataLoader("))]
    statements = "\n".join(lines)
    plain, pasted = [], []
    for _ in range(OUTSIDE_RUNS):
        plain.append(outside_s({}, {}, ""))
        pasted.append(outside_s(flags, loader, statements))
    outside = statistics.median(plain) / statistics.median(pasted)
    off = outside / reached["value"] - 1
    names = " → ".join(f"{rung['added']} {rung['speedup']['value']:.2f}×" for rung in rungs)
    interval = f"{reached['low']:.2f} to {reached['high']:.2f}"
    result = (
        f"{names} ({interval}); pasted and timed by the script {outside:.2f}× ({off:+.1%}); {len(record['runs'])} runs"
    )
    result += "; alone: " + ", ".join(f"{name} {verdict}" for name, verdict in alone.items())
    return len(rungs) >= 3 and reached["value"] >= 2 and abs(off) <= 0.1, result


def outcomes() -> tuple[bool, str]:
    """Check that each treatment gets its planted outcome."""
    record = trial(SCRIPTS / "planted.py", "--try", ",".join(OUTCOMES), *OUTCOMES_LIMITS)
    arms = {arm["id"]: arm for arm in record["arms"] if arm["treatments"]}
    is_met = {name: arm["verdict"] for name, arm in arms.items()} == {
        name: verdict for name, (verdict, _) in OUTCOMES.items()
    }
    is_met = is_met and all(why in arms[name]["reason"] for name, (_, why) in OUTCOMES.items())
    return is_met, ", ".join(f"{name.partition('=')[2]} {_outcome(arm)}" for name, arm in arms.items())


def _outcome(arm: dict[str, Any]) -> str:
    if arm["speedup"]:
        return f"{arm['verdict']} ({arm['speedup']['value']:.2f}×)"
    return f"{arm['verdict']} ({arm['reason']})"


def single(script: Path, treatment: str, wanted: str, trainer: dict[str, Any] | None = None) -> tuple[bool, str]:
    """Check the verdict of one treatment; ``trainer`` has Trainer flags, which only ``MANY_FAULTS`` accepts."""
    arguments = () if trainer is None else ("--trainer", json.dumps(trainer))
    record = trial(script, "--try", treatment, arguments=arguments)
    arm = next(arm for arm in record["arms"] if arm["treatments"])
    speedup = arm["speedup"]
    figure = f"{speedup['value']:.2f}× ({speedup['low']:.2f} to {speedup['high']:.2f})" if speedup else arm["reason"]
    return arm["verdict"] == wanted, f"{treatment} {arm['verdict']}: {figure}"


QUIET = {"detect_anomaly": False, "log_every_n_steps": 10**6}

CASES = {
    "outcomes": (outcomes, 3),
    "ladder": (ladder, 1),
    "sleeping": (lambda: single(MANY_FAULTS, "loader-workers=2", "improved", QUIET), 1),
    "logging": (lambda: single(MANY_FAULTS, "log-every-n=50", "improved", {"detect_anomaly": False}), 1),
    "matmul": (lambda: single(SCRIPTS / "matmul.py", "precision-bf16", "improved"), 1),
    "compile": (lambda: single(SCRIPTS / "elementwise.py", "compile", "improved"), 1),
    "tiny": (lambda: single(SCRIPTS / "tiny_ops.py", "compile", "regressed"), 1),
}
"""Function and number of rounds of each case."""


def is_left_out(case: str) -> bool:
    """Return whether this machine cannot run the case."""
    return case == "matmul" and lower_precision_speedup(measure_ceilings("cpu"), "fp32") is None


def main() -> None:
    """Run the cases and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--rounds", type=int, help="number of rounds (default: by case)")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}; rows of other cases are kept")
    arguments = parser.parse_args()
    rows: list[Row] = []
    cases = [case for case in arguments.cases or CASES if not is_left_out(case)]
    for case in cases:
        run, rounds = CASES[case]
        for number in range(arguments.rounds or rounds):
            started_s = time.perf_counter()
            try:
                is_met, result = run()
            except subprocess.CalledProcessError as error:
                is_met, result = False, f"the command exited with {error.returncode}"
            wall_s = time.perf_counter() - started_s
            rows.append(Row(f"{case}, round {number + 1}", is_met, result, wall_s, time.strftime("%Y-%m-%d")))
            print(f"{'met   ' if is_met else 'MISSED'} {rows[-1].case}: {result} [{wall_s:.0f} s]", flush=True)
    if arguments.write:
        lines = [_line(row) for row in rows] + _kept(cases)
        PAGE.write_text(page(lines), encoding="utf-8")
    sys.exit(0 if all(row.is_met for row in rows) else 1)


def _line(row: Row) -> str:
    call = "met" if row.is_met else "**missed**"
    return f"| {row.case} | {call} | {row.result} | {row.wall_s:.0f} | {row.date} |"


def _kept(measured: list[str]) -> list[str]:
    """Return the rows of cases that were not measured now."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    others = tuple(f"| {case}, round" for case in CASES if case not in measured)
    return [line for line in lines if line.startswith(others)]


def page(lines: list[str]) -> str:
    """Return the documentation page."""
    order = list(CASES)
    lines = sorted(lines, key=lambda line: (order.index(line[2:].partition(",")[0]), line))
    head = ["| case | | result | seconds | date |", "|---|---|---|---|---|"]
    where = f"{os.cpu_count()} cores, one torch thread per process"
    about = f"Written by `python benchmarks/trial/run.py --write`: {where}."
    assert __doc__ is not None
    return "\n".join(["# Trials", "", *__doc__.strip().splitlines()[:-3], "", about, "", *head, *lines, ""])


if __name__ == "__main__":
    main()
