"""Start one command, watch its time and memory, and leave no process of it behind.

Runs as a separate process (``python -I process_supervisor.py SPEC``) between lightning-perf and the command. Its
standard input is a pipe from lightning-perf: when that closes, also because lightning-perf was killed, everything
started here is killed. It leads its own session, so that Ctrl-C in the terminal only reaches lightning-perf.
Memory is watched, not limited by ``setrlimit``: RLIMIT_AS counts addresses, of which CUDA reserves far more than it
uses, and no such limit holds for several processes together.
It imports only light modules of the standard library, because it starts once for every run.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

_POLL_S = 0.1
_MEMORY_EVERY_S = 0.2
_LEFT_EVERY_S = 1.0
_EXACT_MEMORY_EVERY_S = 1.0  # not more often, because it stops the training briefly
_STRAGGLERS_S = 15.0  # for processes that outlive the first one: one of them may be the training
_MEASURED_S = 3.0  # the same after a measurement: other ranks and workers end a little after the first process
_TERM_S = 1.0
_KILL_S = 30.0  # a process that is stuck in the kernel, or of another user, cannot be killed
_PARENT_DEATH, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of linux/prctl.h
_OOM_SCORE = "500"  # of 1000: if memory runs out, the kernel kills a run rather than other processes


def main(spec_path: str) -> None:
    """Run the command of a spec and write its exit status next to it."""
    with open(spec_path, encoding="utf-8") as file:
        spec = json.load(file)
    if hasattr(signal, "SIGTTOU"):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    before = None
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.prctl(_SUBREAPER, 1, 0, 0, 0)  # adopts processes whose parents have ended, instead of init

        def before() -> None:  # in the child: end it when this process alone is killed
            library.prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)

        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(_OOM_SCORE)
    ended: dict[str, Any] = {"code": None, "reason": ""}
    started = time.monotonic()
    try:
        command = subprocess.Popen(spec["command"], stdin=subprocess.DEVNULL, preexec_fn=before)
    except FileNotFoundError:
        ended["reason"] = "command not found; give it after -- as you would type it"
    except OSError as error:
        ended["reason"] = f"cannot be started: {error.strerror or error}"
    else:
        _watch(command, spec, ended, started)
    ended["wall_s"] = time.monotonic() - started
    temporary = spec["ended"] + ".tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(ended, file)
    os.replace(temporary, spec["ended"])


def _watch(command: subprocess.Popen[bytes], spec: dict[str, Any], ended: dict[str, Any], started: float) -> None:
    memory_limit, time_limit = spec["memory_limit_bytes"], spec["time_limit_s"]
    read_at, read_exactly_at, checked_at = 0.0, -_EXACT_MEMORY_EVERY_S, 0.0
    seen: set[int] = set()
    while not ended["reason"]:
        if _wait_for_close():
            ended["reason"] = "interrupted"
            break
        if command.poll() is not None:
            break
        now = time.monotonic()
        if now - checked_at >= _LEFT_EVERY_S:
            checked_at = now
            if _has_left(spec["events"], seen):  # a shell script may go on with other programs
                break
        if time_limit is not None and now - started > time_limit:
            ended["reason"] = f"it ran past its time limit of {time_limit:g} s"
        if memory_limit is None or now - read_at < _MEMORY_EVERY_S:
            continue
        read_at = now
        if _memory_bytes() > memory_limit and now - read_exactly_at >= _EXACT_MEMORY_EVERY_S:
            read_exactly_at, used = now, _memory_bytes(is_exact=True)
            if used > memory_limit:
                ended["reason"] = (
                    f"it used {used / 2**30:.2f} GiB of memory; its limit is {memory_limit / 2**30:.2f} GiB"
                )
    if not ended["reason"]:
        _wait_for_stragglers(_MEASURED_S if os.path.exists(spec["result"]) else _STRAGGLERS_S)
    _kill_all(signal.SIGKILL if ended["reason"] == "interrupted" else signal.SIGTERM)
    ended["code"] = command.poll()


def _has_left(events: str, seen: set[int]) -> bool:
    """Return whether a measurement is over and all processes that trained have ended.

    Those that ran are added to ``seen``: a process that is never seen may run in a container.
    """
    try:
        with open(events, "rb") as file:
            words = [line.split() for line in file if line.startswith((b"fit ", b"over ")) and line.endswith(b"\n")]
    except OSError:
        return False
    pids, running = {int(pid) for _, pid in words}, set(_descendants())
    seen |= pids & running
    return any(event == b"over" for event, _ in words) and pids <= seen - running


def _wait_for_stragglers(seconds: float) -> None:
    until = time.monotonic() + seconds
    while _descendants() and time.monotonic() < until and not _wait_for_close():
        pass


def _wait_for_close() -> bool:
    """Wait a moment; return whether standard input was closed, which asks this process to end the command."""
    readable, _, _ = select.select([0], [], [], _POLL_S)
    return bool(readable) and not os.read(0, 1)


def _kill_all(first: int) -> None:
    """End all descendants of this process, in whatever groups and sessions."""
    begun = time.monotonic()
    until = begun + (_TERM_S if first != signal.SIGKILL else 0.0)
    number = first
    while time.monotonic() - begun < _KILL_S:
        alive = _descendants()
        if not alive:
            return
        if time.monotonic() >= until:
            number = signal.SIGKILL
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # one that sudo started
                os.kill(pid, number)
        time.sleep(0.05)


def _descendants() -> list[int]:
    """Return the running descendants of this process."""
    found: list[int] = []
    if not os.path.isdir("/proc/self"):
        import psutil

        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child.pid)
        return found
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                parents[int(name)] = int(fields[1])
    ours = {os.getpid()}
    is_growing = True
    while is_growing:
        new = [pid for pid, parent in parents.items() if parent in ours and pid not in ours]
        ours.update(new)
        found += new
        is_growing = bool(new)
    return found


def _memory_bytes(is_exact: bool = False) -> int:
    """Return the resident memory of all processes together, without mapped files, which the kernel can drop.

    With ``is_exact``, pages shared by forked processes count once, which makes the kernel visit every page.
    """
    own = shared = 0
    for pid in _descendants():
        exact = _kib_of(f"/proc/{pid}/smaps_rollup") if is_exact else {}
        if b"Pss:" in exact:
            own += exact[b"Pss:"] - exact.get(b"Pss_File:", 0)
            continue
        rough = _kib_of(f"/proc/{pid}/status")
        own += rough.get(b"RssAnon:", rough.get(b"VmRSS:", 0))
        shared = max(shared, rough.get(b"RssShmem:", 0))
    return (own + shared) * 1024


def _kib_of(path: str) -> dict[bytes, int]:
    """Return the values in KiB of a file below /proc, by name; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            lines = [line.split() for line in file]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) == 3 and words[2] == b"kB"}


if __name__ == "__main__":
    main(sys.argv[1])
