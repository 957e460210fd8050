"""Runs kinds of training, each in a forked process of its own: ``python -m trainer.comparison_server``.

Reads requests, one JSON object per line, from standard input and answers each with one line. Importing torch and
Lightning takes seconds; a fork of a process that has imported them takes milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pickle
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIGURATIONS: dict[str, dict[str, Any] | None] = {
    "bare": None,
    "defaults": {},
    "windows": {"schedule": (1, 1, 2, 0)},
    "everything": {
        "schedule": (3, 1, 2, 0),
        "probe_data": True,
        "reports": ["console", "tensorboard", "json", "html"],
        "apply": ["progress-refresh", "prog-bar-off"],
        "autopilot": "exact",
        "options": {
            "memory_snapshot": True,
            "progress": True,
            "module_depth": 2,
            "device_stats": True,
            "profiler": {"record_shapes": True, "profile_memory": True, "with_flops": True},
            "price_per_hour": 1.0,
            "gco2_per_kwh": 100.0,
        },
    },
}
"""PerfDoctor's arguments in each configuration; None for a run without it."""

_PROBE_LIMIT_S = 0.6  # of a loader's probe, so that runs stay short
_PROBE_CONSTANTS = {
    "_PROBED_WAIT_SHARE": -1.0,
    "SHORT_WAIT_SHARE": -1.0,
    "SHORT_SHARE": 100.0,
    "SHORT_LEAST_S": 0.0,
    "SHORT_MOST_S": _PROBE_LIMIT_S,
}
"""Of the watch of loaders: loaders are probed in every run, however short and whether it waits for its data or not."""
_SCHEDULE_CONSTANTS = {
    "FIRST_SLOW_STEPS": 1,
    "FIRST_SLOW_S": 0.0,
    "MAX_INTERVAL_S": 0.0,
    "COST_FACTOR": 1,
    "CHECK_S": 0.0,
}
"""Of the schedule within epochs: diagnoses after almost every step, which take up to half of the time."""
_AUTOPILOT_CONSTANTS = {
    "BLOCK_S": 0.0, "BUDGET_SHARE": 1e9, "SLOW_FACTOR": 1e9, "_LEAST_DISCARDED": 0, "FIRST_SYNC_STEP": 1,
}  # fmt: skip
"""Of the autopilot: blocks of one step, however slow they are."""
_GRACE_S = 5.0  # for processes that are about to end
_BECOME_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


def _doctors(configuration: str, namespace: str = "lightning.pytorch") -> list[Any]:
    arguments = CONFIGURATIONS[configuration]
    if arguments is None:
        return []
    module = "lightning_perf.pytorch_lightning" if namespace == "pytorch_lightning" else "lightning_perf"
    return [importlib.import_module(module).PerfDoctor(**arguments)]


def _shorten_probes() -> None:
    prober = importlib.import_module("lightning_perf.probes.loader.prober")
    prober.MIN_LIMIT_S = _PROBE_LIMIT_S
    prober.LoaderProber.__init__.__defaults__ = (_PROBE_LIMIT_S, 1, None, "full")


def _probe_every_loader() -> None:
    """Lift the conditions on the run's time; those on what the loader holds stay."""
    watch = importlib.import_module("lightning_perf.probes.loader.watch")
    for name, value in _PROBE_CONSTANTS.items():
        setattr(watch, name, value)
    watch.LoaderWatch._suspicious_loader = _training_loader


def _diagnose_often() -> None:
    """Diagnose and print within epochs, however short they are."""
    schedule = importlib.import_module("lightning_perf.diagnosis_schedule")
    for name, value in _SCHEDULE_CONSTANTS.items():
        setattr(schedule, name, value)
    importlib.import_module("lightning_perf.run_reports").WITHIN_EPOCH_LEAST_S = 0.0


def _try_often() -> None:
    """Let the autopilot try treatments that no finding recommends, from the first steps on."""
    autopilot = importlib.import_module("lightning_perf.autopilot")
    for name, value in _AUTOPILOT_CONSTANTS.items():
        setattr(autopilot, name, value)

    def offer(self: Any, session: Any) -> None:
        if not self._tries and self._try is None:
            # The interval that is set already: another one would log other rows.
            now = self._trainer.log_every_n_steps
            tried = ([f"log-every-n={now}"] if now else []) + ["loader-workers=1"]
            specs = [autopilot.parse(text) for text in tried]
            self._waiting = [(spec.text, "PD000", self._unit_of(spec)) for spec in specs]
            self._next_sync = 0

    autopilot.Autopilot.offer = offer


def _training_loader(self: Any, share: float, needs_workers: bool = False) -> Any:
    """Return the training loader, also where the run is too short to know how long it waits for it."""
    loaders = [each for each in self._run.settings.loaders if each.stage == "train"]
    if len(loaders) != 1 or loaders[0].num_workers is None or (needs_workers and not loaders[0].num_workers):
        return None
    return importlib.import_module("lightning_perf.probes.loader.watch")._only_loader(self.trainer.train_dataloader)


def _run(request: dict[str, Any], functions: Callable[[], Any] | None = None) -> dict[str, Any]:
    """Train in the observed process and return the observations."""
    import torch
    from lightning.pytorch import seed_everything

    from . import observations, observed_files
    from .kinds.registry import KINDS, Run, SkipKind

    folder = Path(request["folder"])
    kind = KINDS[request["kind"]]
    before = observations.functions_by_owner() if functions is None else functions()
    torch.set_num_threads(1)
    seed_everything(7, verbose=False)
    _shorten_probes()
    if request["probes"]:
        _probe_every_loader()
    if request["configuration"] == "everything":
        _diagnose_often()
        _try_often()
    run = Run(folder, _doctors(request["configuration"]), lambda name: _doctors(request["configuration"], name))
    shown: list[Any] = []
    warnings.simplefilter("default")
    error: BaseException | None = None
    with _recorded_warnings(shown):
        try:
            kind.train(run)
        except SkipKind as skip:
            return {"skipped": str(skip)}
        except BaseException as raised:  # noqa: BLE001 - compared
            error = raised
        process = observations.observe_process()
    return {
        "error": _chain(error),
        "traceback": "".join(traceback.format_exception(error)) if error is not None else "",
        "observed": {
            "error": _chain(error),
            "notes": run.notes,
            "warnings": sorted({one for one in shown if "lightning_perf" not in one}),
            "process": process,
            "replaced": observations.replaced_functions(before),
            "objects": observations.observe_trainers([run.trainers]),
            "files": observed_files.observe_files(folder),
        },
        "probes_off": {
            failure.probe: failure.error
            for one in run.used
            if one.session is not None
            for failure in one.session.probes_off
        },
        "loader_probes": [_loader_probe(one.session) for one in run.used if one.session is not None],
    }


def _loader_probe(session: Any) -> tuple[str, str]:
    """Return the status of the loader's probe and its reason; why there is none where there is none."""
    probe = session.loader_probe
    return ("none", session.missing["loader_probe"]) if probe is None else (probe.status, probe.reason)


@contextlib.contextmanager
def _recorded_warnings(shown: list[str]) -> Any:
    before = warnings.showwarning

    def show(message: Any, category: Any, *_: Any, **__: Any) -> None:
        shown.append(f"{category.__name__}: {message}")

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def _chain(error: BaseException | None) -> list[str]:
    """Return types and texts of an exception and of those that led to it."""
    chain = []
    while error is not None and len(chain) < 10:
        chain.append(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def _prepare(folder: Path) -> None:
    """Give this process a session, folders and standard streams of its own."""
    os.setsid()
    for name in ("work", "home", "tmp"):
        (folder / name).mkdir(parents=True)
    os.chdir(folder / "work")
    variables = {"HOME": "home", "TMPDIR": "tmp", "XDG_CACHE_HOME": "home/.cache"}
    os.environ.update({name: str(folder / value) for name, value in variables.items()})
    os.environ.update(COLUMNS="100", TORCHINDUCTOR_CACHE_DIR=str(folder / "tmp"))
    output = os.open(folder.parent / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, 64)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    faulthandler.enable()
    faulthandler.register(signal.SIGQUIT, all_threads=True)


def _run_to_its_end(request: dict[str, Any], functions: Callable[[], Any] | None = None) -> None:
    """Train, write down what was observed, and end the process as the interpreter would."""
    status = 0
    try:
        result = _run(request, functions)
        written = Path(request["folder"]).parent / "result.pickle"
        written.with_suffix(".part").write_bytes(pickle.dumps(result))
        written.with_suffix(".part").rename(written)
    except BaseException:  # noqa: BLE001 - shown
        traceback.print_exc()
        status = 70
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# -- the server ------------------------------------------------------------


def _children() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


def _wait_for(pid: int, limit_s: float) -> int | None:
    """Return a child's exit status; None if it had to be killed after showing its stacks."""
    fd = os.pidfd_open(pid)
    try:
        import select

        if not select.select([fd], [], [], limit_s)[0]:
            os.kill(pid, signal.SIGQUIT)
            time.sleep(0.5)
            for member in [
                pid,
                *(p for p in map(_session_member, os.listdir("/proc")) if p is not None and p[1] == pid),
            ]:
                with contextlib.suppress(OSError):
                    os.kill(member if isinstance(member, int) else member[0], signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(fd)


def _session_member(name: str) -> tuple[int, int] | None:
    try:
        return int(name), os.getsid(int(name))
    except (ValueError, OSError):
        return None


def _leftovers() -> list[str]:
    """Return the commands of processes that outlived a run, and end them."""
    deadline = time.monotonic() + _GRACE_S
    while children := _children():
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    names = []
    for pid in children:
        with contextlib.suppress(OSError):
            names.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() or str(pid))
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return names


def _answer(request: dict[str, Any], functions: Callable[[], Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    sys.stdout.flush()
    if request["fresh"]:
        command = [sys.executable, "-m", __spec__.name, json.dumps(request)]
        pid = subprocess.Popen(command, cwd=Path(__file__).parents[1]).pid
    else:
        pid = os.fork()
        if pid == 0:
            _prepare(folder)
            _run_to_its_end(request, functions)
    status = _wait_for(pid, request["limit_s"])
    ended_s = time.monotonic()
    return {"status": status, "wall_s": ended_s - began_s, "leftovers": _leftovers()}


def _load_all() -> None:
    """Import what runs need."""
    import tensorboard.backend.event_processing.event_file_loader
    import torch

    torch.set_num_threads(1)
    names = [
        "torch._dynamo",
        "torch.profiler",
        "pytorch_lightning",
        "torchmetrics",
        "rich.console",
        "psutil",
        "plotly",
        "lightning_perf.hooks",
        "lightning_perf.doctor",
        "lightning_perf.pytorch_lightning",
        "tqdm",
        "lightning_perf.reports.render.html",
        "torch.utils.tensorboard",
        "lightning.pytorch.cli",
        "torch.func",
    ]
    for name in names:
        importlib.import_module(name)
    for package in ("probes", "reports", "rules", "treatments"):  # runs import them late
        found = importlib.import_module(f"lightning_perf.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            importlib.import_module(module.name)
    _doctors("everything")
    with warnings.catch_warnings():
        importlib.import_module("plotly.graph_objects").Figure().add_bar(y=[1])
        importlib.import_module("jinja2.environment")
    importlib.import_module(".kinds", __package__)
    assert tensorboard is not None
    random.seed(0)


def main() -> None:
    if len(sys.argv) > 1:
        request = json.loads(sys.argv[1])
        importlib.import_module(".kinds", __package__)
        _prepare(Path(request["folder"]))
        _run_to_its_end(request)
    _load_all()
    from . import observations

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    functions = observations.functions_by_owner()
    gc.collect()
    gc.freeze()  # so that collections in children do not copy all of it
    answers = os.fdopen(os.dup(1), "w", 1)
    os.dup2(2, 1)  # what libraries print is no answer
    print(json.dumps({"threads": threading.active_count()}), file=answers)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), lambda: functions)), file=answers)


if __name__ == "__main__":
    main()
