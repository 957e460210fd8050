"""Runs scripts in processes forked from one that has imported torch, Lightning and lightning_perf.

Importing them takes seconds of CPU time, a fork milliseconds. A script runs as the main program of its own process, or
of one process per rank with the environment that torchrun gives to each. The server only imports and forks: it has no
threads, which a fork would lose.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_BECOME_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
_IMPORTED = (
    "torch.distributed.fsdp",
    "torch.profiler",
    "lightning.pytorch",
    "lightning_perf.hooks",
    "lightning_perf.doctor",
    "lightning_perf.rules.engine",
    "lightning_perf.reports.render.html",
)


class Forkserver:
    """A process that has imported everything, and runs scripts in forks of itself."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def run(
        self,
        script: Path,
        *arguments: str,
        n_ranks: int = 1,
        cwd: Path | None = None,
        limit_s: float = 120.0,
        grace_s: float = 10.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end and return its exit status and output, of all ranks together.

        Args:
            script: A Python file.
            arguments: Its command line.
            n_ranks: Number of processes; more than one get the environment that torchrun gives to ranks.
            cwd: Directory to run in; by default the script's.
            limit_s: Time limit; a script that exceeds it is killed and the call fails.
            grace_s: How long processes that the script started may outlive it.

        Raises:
            AssertionError: The script exceeded its limit, or processes of it were left over.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            request = {
                "command": [str(script), *arguments],
                "cwd": str(cwd or script.parent),
                "environment": {**os.environ, "OMP_NUM_THREADS": "1"},
                "n_ranks": n_ranks,
                "output": folder,
                "limit_s": limit_s,
                "grace_s": grace_s,
            }
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline() or "{}")
            stdout, stderr = (
                Path(folder, name).read_text(encoding="utf-8", errors="replace") for name in ("stdout", "stderr")
            )
        assert answer, "the fork server ended"
        assert answer["status"] is not None, f"{script}: still running after {limit_s} s\n{stdout}\n{stderr}"
        assert answer["left"] == [], f"{script}: processes left behind: {answer['left']}"
        return subprocess.CompletedProcess(request["command"], answer["status"], stdout, stderr)

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# -- the server ------------------------------------------------------------


def _rank_environment(rank: int, n_ranks: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank of one machine."""
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": n_ranks,
        "LOCAL_WORLD_SIZE": n_ranks,
        "GROUP_RANK": 0,
        "ROLE_RANK": rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {name: str(value) for name, value in values.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _become(request: dict[str, Any], rank: int, port: int) -> None:
    """Give this process the environment, directory, command line and streams of its script."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["n_ranks"] > 1:
        os.environ.update(_rank_environment(rank, request["n_ranks"], port))
        importlib.import_module("lightning.fabric.utilities.rank_zero").rank_zero_only.rank = rank  # read at import
    os.chdir(request["cwd"])
    sys.argv[:] = request["command"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(request["output"], name), os.O_WRONLY | os.O_APPEND), number)
    os.closerange(3, 64)


def _run_script() -> int:
    """Run the script as the main program and return its exit status."""
    main = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    sys.modules["__main__"] = main
    try:
        exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), main.__dict__)
    except SystemExit as error:
        if not isinstance(error.code, (int, type(None))):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the interpreter would show it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _run_rank(request: dict[str, Any], rank: int, port: int) -> None:
    """Run the script in this process, and end it as the interpreter would."""
    status = 1
    try:
        _become(request, rank, port)
        status = _run_script()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _launch(request: dict[str, Any]) -> None:
    """Fork the ranks into a session of their own, wait for all, and exit with the first status that is not 0."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the ranks, which a script may interrupt as a group
    port, ranks = _free_port(), []
    for rank in range(request["n_ranks"]):
        pid = os.fork()
        if pid == 0:
            _run_rank(request, rank, port)
        ranks.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    os._exit(next((abs(status) for status in statuses if status), 0))


def _has_ended(pid: int, limit_s: float) -> bool:
    fd = os.pidfd_open(pid)
    try:
        return bool(select.select([fd], [], [], limit_s)[0])
    finally:
        os.close(fd)


def _members(session: int) -> list[int]:
    """Return the processes of a session that still run."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            is_member = entry.isdigit() and os.getsid(int(entry)) == session
            if is_member and Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(entry))
        except OSError:
            continue
    return found


def _reap() -> None:
    """Collect the status of processes that outlived their parents."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    for name in ("stdout", "stderr"):
        Path(request["output"], name).touch()
    launcher = os.fork()
    if launcher == 0:
        _launch(request)
    status = None
    if _has_ended(launcher, request["limit_s"]):
        status = os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])
        deadline_s = time.monotonic() + request["grace_s"]
        while (left := _members(launcher)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
    else:
        left = _members(launcher)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    _reap()
    return {"status": status, "left": left}


def main() -> None:
    """Import what scripts need, then answer one request per line."""
    for name in _IMPORTED:
        importlib.import_module(name)
    for package in ("probes", "reports", "rules", "treatments"):  # runs import them late
        found = importlib.import_module(f"lightning_perf.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("lightning_perf").PerfDoctor()
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    gc.collect()
    gc.freeze()  # so that collections in forks do not copy its memory
    answers = os.fdopen(os.dup(1), "w", 1)
    os.dup2(2, 1)  # what libraries print is no answer
    assert threading.active_count() == 1
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
