"""Runs cases, each in a process forked from this one, which has imported torch and Lightning once for all.

A case runs as ``lightning-perf run -- python CASE`` would run it, and is timed as ``lightning-perf trial`` times an
arm: the same job file, the same wrapper around ``Trainer``. Only the imports are saved. Each run is a first run: its
cache folder is empty, so that the run must measure the machine itself. A process keeps the memory that it frees
(``keep_heap``).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fabric_loop
import torch
from case import Case

from lightning_perf import load
from lightning_perf.records import SESSION_FILE, Session
from lightning_perf.treatments.specs import parse
from lightning_perf.trials.inside import enter
from lightning_perf.trials.job import Job, Result, environment_for, read_result

# A profiler window as a run of some minutes opens by itself, and a loader probe where the run waits for data: these
# trainings last seconds. Reports are not read.
DOCTOR = {"schedule": [20, 2, 5, 1], "probe_data": True, "reports": ["json"]}

# glibc's mallopt: parameter → value. Freed memory is kept, and no tensor gets a mapping of its own.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
HEAP = {_M_TRIM_THRESHOLD: 2**30, _M_MMAP_MAX: 0}
HEAP_VARIABLES = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_MAX_": "0"}

MORE_EPOCHS = 4
"""Factor of the epochs of a run whose fix acts between steps. Most cases have four: the first does not count, and a fix
may validate after every fourth only."""

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of linux/prctl.h
ENDLESS = 10**9  # steps: a timed training runs to its own end
PATIENCE_S = 120.0
PRELOADED = (
    "lightning.pytorch",
    "lightning.pytorch.loggers",
    "torchmetrics",
    "lightning_perf.doctor",
    "lightning_perf.treatments.applier",
    "lightning_perf.trials.modes",
)


class Order(NamedTuple):
    """One run of a case.

    Attributes:
        case: The case.
        mode: ``run``: with PerfDoctor. ``trial``: timed, without it.
        is_fixed: Whether the fault is removed, or the fix of the finding ``code`` is applied.
        code: The finding whose fix is timed, in the script as it is; empty where the case's own fix is.
        treatments: Those of the fix.
        with_fabric: Whether a Fabric loop trains in place of the Trainer.
        doctor: Further arguments of PerfDoctor.
    """

    case: Case
    mode: str
    is_fixed: bool = False
    code: str = ""
    treatments: tuple[str, ...] = ()
    with_fabric: bool = False
    doctor: dict[str, Any] = {}

    @property
    def acts_between_steps(self) -> bool:
        """Whether the fix changes epochs, validation or checkpoints, so that only whole epochs show what it gains."""
        return any(parse(text).treatment.acts_on == "loop" for text in self.treatments)


class Ended(NamedTuple):
    """The result of one run.

    Attributes:
        order: The run that was requested.
        session: Session of a diagnosed run.
        result: Result of a timed run.
        error: Why there is neither; empty otherwise.
        wall_s: Its duration.
    """

    order: Order
    session: Session | None
    result: Result | None
    error: str
    wall_s: float


def preload() -> None:
    """Import what each case needs; start no thread, so that forking is safe."""
    for name in PRELOADED:
        importlib.import_module(name)
    keep_heap()


def keep_heap() -> None:
    """Let this process, and those forked from it, keep the memory that they free.

    Otherwise the C library returns memory and requests it again in each step or in none, depending on what lies at the
    end of the heap: cases without their fault took 1.2 and 1.3 times as long as with it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        for parameter, value in HEAP.items():
            mallopt(parameter, value)


def run_all(orders: Iterable[Order], n_cores: int, n_at_once: int, show: Callable[[Ended], None]) -> list[Ended]:
    """Run all orders in turn, each on cores of its own; one that needs more cores than there are gets all of them.

    Args:
        orders: The runs.
        n_cores: Number of cores in use.
        n_at_once: Largest number of runs at once. Cores share caches and memory bandwidth, so timed runs are run alone.
        show: Called with the result of each run.
    """
    free = sorted(os.sched_getaffinity(0))[:n_cores]
    waiting, running, ended = list(orders), [], []
    while waiting or running:
        while waiting and len(running) < n_at_once and len(free) >= (n := min(waiting[0].case.n_cores, n_cores)):
            running.append(_Running(waiting.pop(0), [free.pop() for _ in range(n)]))
        time.sleep(0.02)
        for run in [run for run in running if run.is_over()]:
            running.remove(run)
            free += run.cores
            ended.append(run.end())
            show(ended[-1])
    return ended


class _Running:
    """A case's process, in a folder of its own."""

    def __init__(self, order: Order, cores: Sequence[int]) -> None:
        self.order = order
        self.cores = list(cores)
        self._folder = tempfile.TemporaryDirectory(prefix="clinic-", ignore_cleanup_errors=True)
        self._home = Path(self._folder.name)
        self._started_s = time.monotonic()
        self._code: int | None = None
        script = self._home / order.case.script.name
        is_changed = order.is_fixed and not order.code
        text = order.case.fixed_script() if is_changed else order.case.script.read_text(encoding="utf-8")
        script.write_text(with_more_epochs(text) if order.acts_between_steps else text)
        job = _job(order, self._home / "job")
        cache = {"XDG_CACHE_HOME": str(self._home / "cache")}
        environment = {**environment_for(job, job.write()), **HEAP_VARIABLES, **cache}
        log = (self._home / "log").open("wb")
        if order.case.own_process:
            command = [sys.executable, str(script)]
            self._pid = subprocess.Popen(
                ["taskset", "--cpu-list", ",".join(map(str, cores)), *command],
                env=environment,
                cwd=self._home,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            ).pid
        else:
            self._pid = os.fork()
            if self._pid == 0:
                _operate(script, environment, cores, log.fileno(), job.doctor if order.with_fabric else None)
        log.close()

    def is_over(self) -> bool:
        """Return whether it ended; kill it where it takes too long."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - self._started_s > PATIENCE_S:
                os.killpg(self._pid, signal.SIGKILL)
        return self._code is not None

    def end(self) -> Ended:
        """Return its session or result, or why there is none, and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)  # e.g. a server of multiprocessing, whose finalizer did not run
        session, result, error = None, read_result(self._home / "job"), ""
        path = self._home / "out" / SESSION_FILE
        if path.exists():
            session = load(path)
        if (session if self.order.mode == "run" else result) is None or (result and result.status != "ok"):
            log = (self._home / "log").read_text(errors="replace").strip().splitlines()
            error = f"ended with {self._code}: " + (result.reason if result and result.reason else "\n".join(log[-6:]))
        wall_s = time.monotonic() - self._started_s
        self._folder.cleanup()
        return Ended(self.order, session, result, error, wall_s)


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def with_more_epochs(script: str) -> str:
    """Return the script with ``MORE_EPOCHS`` times as many epochs."""
    return re.sub(r"\bmax_epochs=(\d+)", lambda found: f"max_epochs={MORE_EPOCHS * int(found[1])}", script)


def _job(order: Order, folder: Path) -> Job:
    specs = order.treatments if order.is_fixed else ()
    if order.mode == "run":
        doctor: dict[str, Any] = {**DOCTOR, **order.doctor, "out_dir": str(folder.parent / "out")}
        return Job(mode="run", folder=str(folder), specs=specs, doctor=doctor)
    return Job(mode="trial", folder=str(folder), specs=specs, with_doctor=False, steps=ENDLESS, seed=0)


def _operate(
    script: Path, environment: dict[str, str], cores: Sequence[int], log: int, doctor: dict[str, Any] | None
) -> None:
    """Run the script in the forked process, as a Fabric loop if PerfDoctor's arguments are given; never returns."""
    code = 1
    try:
        os.setsid()
        end_with_parent()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(environment)
        os.chdir(script.parent)
        os.sched_setaffinity(0, cores)
        # As torch does by itself where it is imported on so many cores.
        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", len(cores))))
        sys.argv = [str(script)]
        sys.path[0] = str(script.parent)
        if doctor is not None:
            fabric_loop.replace_trainer(doctor)
        else:
            enter(importlib.import_module("lightning.pytorch.trainer.trainer"))
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - logged; this process must not go on as the runner
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
