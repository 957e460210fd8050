"""Check that each planted fault of the input pipeline is named: the rule, and file and line of a slow function.

    python benchmarks/loader/causes.py [--runs 3] [--only CAUSE,...] [--time 10] [--command both]

Runs ``planted.py`` for each cause with ``PerfDoctor(probe_data=True)`` in a real ``Trainer.fit`` and through
``lightning-perf data``, and prints the verdict. Needs an otherwise idle machine: programs that use the cores would be
the cause themselves.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from planted import CAUSES

from lightning_perf.records import Session, load

SCRIPT = Path(__file__).with_name("planted.py")


def main() -> None:
    """Run all and print a table; exit with 1 if a fault was not named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join(CAUSES))
    parser.add_argument("--time", type=float, default=10.0, help="time limit in seconds of a probe without training")
    parser.add_argument("--command", choices=(*COMMANDS, "both"), default="both")
    arguments = parser.parse_args()
    missed = 0
    commands = COMMANDS if arguments.command == "both" else {arguments.command: COMMANDS[arguments.command]}
    print(f"{'cause':24}{'expected':10}" + "".join(f"{name:>40}" for name in commands), flush=True)
    for cause in arguments.only.split(","):
        for _ in range(arguments.runs):
            shown = []
            for probe in commands.values():
                with tempfile.TemporaryDirectory() as folder:
                    session = probe(cause, Path(folder), arguments.time)
                is_named, text = judge(cause, session)
                missed += not is_named
                shown.append(f"{'' if is_named else 'MISSED '}{text}")
            print(
                f"{cause:24}{CAUSES[cause].code or 'healthy':10}" + "".join(f"{text:>40}" for text in shown), flush=True
            )
    print(f"{missed} missed")
    raise SystemExit(missed > 0)


def fitted(cause: str, folder: Path, _: float) -> Session:
    """Return the session of a real fit, which sets the probe's time limit itself."""
    run([sys.executable, str(SCRIPT), cause, "--doctor", str(folder)], folder)
    return load(folder)


def probed(cause: str, folder: Path, limit_s: float) -> Session:
    """Return the session of a probe without training."""
    command = [sys.executable, str(SCRIPT), cause]
    run(
        [sys.executable, "-m", "lightning_perf", "data", "--out", str(folder), "--time", str(limit_s), "--", *command],
        folder,
    )
    return load(folder)


def run(command: list[str], folder: Path) -> None:
    """Run a command; exit with its output if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ}, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )


def judge(cause: str, session: Session) -> tuple[bool, str]:
    """Return whether the session names the cause, and what it names."""
    expected = CAUSES[cause]
    if expected.code is None:
        data = [f.code for f in session.findings if f.severity != "info" and f.code.startswith("PD1")]
        return not data, f"findings on data: {', '.join(data) or 'none'}"
    first = session.verdict.code
    place = ""
    is_there = True
    if expected.function is not None:
        place = _place(session, "collate" if expected.code == "PD108" else "getitem")
        is_there = place == f"{SCRIPT.name}:{expected.function.__code__.co_firstlineno}"
    return first == expected.code and is_there, f"{first} {place}".strip()


def _place(session: Session, where: str) -> str:
    """Return file and line of the most expensive function."""
    functions = session.loader_probe.functions if session.loader_probe is not None else ()
    function = next((each for each in functions if each.where == where), None)
    return f"{Path(function.file).name}:{function.line}" if function is not None else "no function"


COMMANDS = {"fit": fitted, "data": probed}


if __name__ == "__main__":
    main()
