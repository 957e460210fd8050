"""How often does the hang watch raise a false alarm? Healthy trainings, and ones that wait for a known reason.

Run: ``python benchmarks/endings/alarms.py [--after S …] [--waits]``. With the default limit of 60 s, a training of some
seconds could hardly cause an alarm, so the clinic's cases are trained with small limits too.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CLINIC = ROOT / "benchmarks" / "clinic"
KINDS = ("validation", "checkpoint", "torch.save", "compile", "pdb", "input", "planted")
"""How a training waits; ``planted`` is a sleep in ``training_step``, which must be reported."""

TYPED = {"pdb": b"c\n", "input": b"yes\n"}
PROMPT = re.compile(r"\(Pdb\)|go on\?")


def count_in_case(script: str, after_s: str) -> None:
    """Run a case of the clinic with PerfDoctor, in this process, and print the number of hangs."""
    from lightning.pytorch import Trainer

    from lightning_perf import PerfDoctor

    doctor = PerfDoctor(reports=["console"], options={"hang_after_s": float(after_s)})
    init = Trainer.__init__

    def with_doctor(trainer: Any, *args: Any, callbacks: Any = None, **kwargs: Any) -> None:
        given = [] if callbacks is None else callbacks if isinstance(callbacks, list) else [callbacks]
        init(trainer, *args, callbacks=[*given, doctor], **kwargs)

    Trainer.__init__ = with_doctor  # type: ignore[method-assign]
    # Not by runpy, which replaces the command with which Lightning starts other ranks.
    main = sys.modules["__main__"]
    main.__file__ = script
    exec(compile(Path(script).read_text(encoding="utf-8"), script, "exec"), vars(main))
    print(f"\nhangs: {len(doctor.session.hangs) if doctor.session is not None else None}")


def hangs_of(command: list[str], name: str, typed: bytes = b"", wait_s: float = 0.0) -> tuple[str, int | None]:
    """Return a training's name and number of reported hangs, with a terminal; None if it failed."""
    with tempfile.TemporaryDirectory(prefix="alarms-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LIGHTNING_PERF_HISTORY": f"{folder}/history.db"}
        ours, theirs = pty.openpty()
        with (Path(folder) / "log.txt").open("w+") as log:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=theirs, stdout=log, stderr=log, start_new_session=True
            )
            if typed:
                while process.poll() is None and PROMPT.search(Path(folder, "log.txt").read_text()) is None:
                    time.sleep(0.1)
                time.sleep(wait_s)
                os.write(ours, typed)
            process.wait()
            os.close(ours)
            os.close(theirs)
            text = Path(folder, "log.txt").read_text()
        counts = [int(number) for number in re.findall(r"^hangs: (\d+)", text, re.MULTILINE)]
        print(f"{name}: {counts}", flush=True)
        if not counts:
            print(name, text[-1500:], file=sys.stderr)
        return name, max(counts, default=None)


def main() -> None:
    """Print a table per limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--after", type=float, nargs="+", default=[60.0, 2.0], help="values of hang_after_s")
    parser.add_argument("--cases", action="store_true", help="the clinic's healthy trainings")
    parser.add_argument("--faults", action="store_true", help="the clinic's trainings with a fault")
    parser.add_argument("--waits", action="store_true", help="trainings that wait for a known reason")
    parser.add_argument("--at-once", type=int, default=2, help="the clinic's trainings at once")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        count_in_case(*given.case)
        return
    for after_s in given.after:
        folders = [name for name, is_wanted in (("healthy", given.cases), ("cases", given.faults)) if is_wanted]
        scripts = sorted(script for folder in folders for script in (CLINIC / folder).glob("*.py"))
        jobs = [
            partial(hangs_of, [sys.executable, __file__, "--case", str(script), str(after_s)], script.stem)
            for script in scripts
        ]
        with ThreadPoolExecutor(given.at_once) as pool:
            show(after_s, list(pool.map(lambda job: job(), jobs)))
        if given.waits:
            wait_s = 1.25 * after_s + 1.0
            waits = Path(__file__).with_name("waits.py")
            with ThreadPoolExecutor(len(KINDS)) as pool:
                jobs = [
                    partial(
                        hangs_of,
                        [sys.executable, str(waits), kind, str(wait_s), str(after_s)],
                        kind,
                        TYPED.get(kind, b""),
                        wait_s,
                    )
                    for kind in KINDS
                ]
                show(after_s, list(pool.map(lambda job: job(), jobs)))


def show(after_s: float, counted: list[tuple[str, int | None]]) -> None:
    """Print how many trainings had alarms, and which."""
    if counted:
        alarms = {name: n for name, n in counted if n}
        failed = [name for name, n in counted if n is None]
        print(f"hang_after_s={after_s:g}: {len(counted)} trainings, reported {alarms}, failed {failed}", flush=True)


if __name__ == "__main__":
    main()
