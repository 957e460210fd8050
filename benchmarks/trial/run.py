"""Does ``lightning-perf trial`` say what is true? Scripts with known faults and planted fates, several rounds in a row.

- ``ladder``: a script with several faults, none of them named to the trial. The ladder must reach 2× in at least three
  rungs, and its flags, pasted into the script and timed by the script itself outside the tool, must give the same
  speed-up within 10 %.
- ``fates``: harmless treatments that a script turns into a decoy, a brake, a crash, a hang, a hog and poison.
- ``matmul``: bf16 on a stack of wide layers, where the CPU has fast bf16.
- ``compile``: a long chain of element-wise operations.

Run: ``python benchmarks/trial/run.py [CASE...] [--rounds N] [--write]`` (some ten minutes a round).
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
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
PAGE = HERE.parents[1] / "docs" / "benchmarks" / "trial.md"
FATES = {
    "log-every-n=101": "no_change",
    "log-every-n=102": "regressed",
    "log-every-n=103": "failed",
    "log-every-n=104": "failed",
    "log-every-n=105": "failed",
    "log-every-n=106": "failed",
}
OUTSIDE_STEPS, OUTSIDE_RUNS = 120, 3
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        case: Its name.
        is_met: Whether it came out as it must.
        told: What came out.
        wall_s: What it took.
    """

    case: str
    is_met: bool
    told: str
    wall_s: float


def trial(script: str, *options: str) -> dict[str, Any]:
    """The record of a trial of a script."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lightning_perf", "trial", "--out", f"{folder}/out", "--json", *options]
        done = subprocess.run(
            [*command, "--", sys.executable, str(SCRIPTS / script)],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        record: dict[str, Any] = json.loads(done.stdout)
        return record


def outside_s(trainer: dict[str, Any], loader: dict[str, Any]) -> float:
    """Seconds a step that the script itself measures, without the tool."""
    script = [sys.executable, str(SCRIPTS / "many_faults.py"), "--steps", str(OUTSIDE_STEPS)]
    flags = ["--trainer", json.dumps(trainer), "--loader", json.dumps(loader)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*script, *flags], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True
        )
    return float(done.stdout.rpartition("step_s=")[2].split()[0])


def ladder() -> tuple[bool, str]:
    """Climbs, then pastes."""
    record = trial("many_faults.py")
    rungs = [rung for rung in record["ladder"] if rung["is_kept"] and rung["added"]]
    if not rungs:
        return False, "no rung was kept"
    reached = rungs[-1]["speedup"]
    flags, loader = record["trainer_flags"], record["loader_args"]
    plain, pasted = [], []
    for _ in range(OUTSIDE_RUNS):
        plain.append(outside_s({}, {}))
        pasted.append(outside_s(flags, loader))
    outside = statistics.median(plain) / statistics.median(pasted)
    off = outside / reached["value"] - 1
    names = " → ".join(f"{rung['added']} {rung['speedup']['value']:.2f}×" for rung in rungs)
    interval = f"{reached['low']:.2f} to {reached['high']:.2f}"
    told = f"{names} ({interval}); pasted, outside the tool {outside:.2f}× ({off:+.1%}); {len(record['runs'])} runs"
    return len(rungs) >= 3 and reached["value"] >= 2 and abs(off) <= 0.1, told


def fates() -> tuple[bool, str]:
    """Each treatment meets its own."""
    limits = ["--time-limit", "60", "--memory-limit", "2G"]
    record = trial("planted.py", "--try", ",".join(FATES), *limits)
    verdicts = {arm["id"]: arm["verdict"] for arm in record["arms"] if arm["treatments"]}
    return verdicts == FATES, ", ".join(f"{name.partition('=')[2]} {verdict}" for name, verdict in verdicts.items())


def single(script: str, treatment: str) -> tuple[bool, str]:
    """One treatment must improve."""
    record = trial(script, "--try", treatment)
    arm = next(arm for arm in record["arms"] if arm["treatments"])
    speedup = arm["speedup"]
    figure = f"{speedup['value']:.2f}× ({speedup['low']:.2f} to {speedup['high']:.2f})" if speedup else arm["reason"]
    return arm["verdict"] == "improved", f"{arm['verdict']}: {figure}"


CASES = {
    "ladder": ladder,
    "fates": fates,
    "matmul": lambda: single("matmul.py", "precision-bf16"),
    "compile": lambda: single("elementwise.py", "compile"),
}


def main() -> None:
    """Runs the cases and tells what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for number in range(arguments.rounds):
        for case in arguments.cases or CASES:
            started_s = time.perf_counter()
            is_met, told = CASES[case]()
            rows.append(Row(f"{case}, round {number + 1}", is_met, told, time.perf_counter() - started_s))
            print(f"{'met   ' if is_met else 'MISSED'} {rows[-1].case}: {told}", flush=True)
    if arguments.write:
        PAGE.write_text(page(rows), encoding="utf-8")
    sys.exit(0 if all(row.is_met for row in rows) else 1)


def page(rows: list[Row]) -> str:
    """The page of the docs."""
    calls = {True: "met", False: "**missed**"}
    lines = [f"| {row.case} | {calls[row.is_met]} | {row.told} | {row.wall_s:.0f} |" for row in rows]
    head = ["| case | | what came out | seconds |", "|---|---|---|---|"]
    when, where = time.strftime("%Y-%m-%d"), f"{os.cpu_count()} cores, one torch thread a process"
    about = f"Written by `python benchmarks/trial/run.py --write` on {when}: {where}."
    assert __doc__ is not None
    return "\n".join(["# Trials", "", *__doc__.strip().splitlines()[:-2], "", about, "", *head, *lines, ""])


if __name__ == "__main__":
    main()
