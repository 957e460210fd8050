"""No process outlives its trial, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from lightning_perf.trials import process_supervisor
from lightning_perf.trials.job import Job, Result, note
from lightning_perf.trials.process_supervisor import _STRAGGLERS_S
from lightning_perf.trials.runner import explain, run_supervised

from .test_bootstrap import put_stand_in

# Starts processes that leave its process group and session, like loaders and launchers, and never ends.
RESTLESS = """
import subprocess, sys, time
child = [sys.executable, "-c", "import time; time.sleep(600)"]
started = [subprocess.Popen(child, start_new_session=away) for away in (False, True)]
open("pids", "w").write(" ".join(str(one.pid) for one in started))
time.sleep(600)
"""

# Like workers of a loader: three share the memory that one has filled.
SHARING = """
import os, time
hoard = b"x" * 2**27
for _ in range(3):
    if os.fork() == 0:
        break
time.sleep(1.5)
"""

# Like a dataset in a memory-mapped file.
MAPPING = """
import mmap, time
with open({path!r}, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
assert sum(mapped[::4096]) > 0
time.sleep(2.5)
"""

# Like a measured training: its result is written before its process has ended.
MEASURED = """
import os, time
def note(event):
    open("job/events", "a").write(f"{event} {os.getpid()}\\n")
note("fit")
open("job/result.json", "w").write('{"status": "ok"}')
if os.fork() == 0:  # another rank, which ends first
    note("fit")
    time.sleep(1.5)
    note("over")
else:
    time.sleep(7)  # longer than processes get that outlive the measured one
    open("session", "w").close()
    note("over")
"""

# The part of lightning-perf under test, in a process of its own.
RUNS = """
import sys
from lightning_perf.trials.job import Job
from lightning_perf.trials.runner import run_supervised
try:
    run_supervised([sys.executable, "restless.py"], Job(mode="trial", folder="job"))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "restless.py").write_text(RESTLESS)
    return tmp_path


def wait_for(is_true: Callable[[], object], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if is_true():
            return True
        time.sleep(0.05)
    return False


def pids(work: Path) -> list[int]:
    path = work / "pids"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_all_processes_end_when_a_command_hangs(work: Path) -> None:
    for limit_s in (3, 30):  # on a busy machine, its children start late
        (work / "pids").unlink(missing_ok=True)
        ended = run_supervised([sys.executable, "restless.py"], Job(mode="trial", folder="job"), time_limit_s=limit_s)
        if len(pids(work)) == 2:
            break
    assert f"time limit of {limit_s} s" in ended.failure
    assert len(pids(work)) == 2
    assert not any(map(is_alive, pids(work)))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_processes_end_when_the_parent_is_signalled(work: Path, sent: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", RUNS], stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert wait_for(lambda: len(pids(work)) == 2)
    parent.send_signal(sent)
    said, _ = parent.communicate(timeout=60)
    assert wait_for(lambda: not any(map(is_alive, pids(work))))
    assert said == ("interrupted\n" if sent == signal.SIGINT else "")


def test_command_is_ended_when_it_exceeds_the_memory_limit(work: Path) -> None:
    hog = "import time\nhoard = []\nfor _ in range(100):\n    hoard.append(b'x' * 2**24)\n    time.sleep(0.05)"
    limit = 200 * 2**20
    command = [sys.executable, "-c", hog]
    ended = run_supervised(command, Job(mode="trial", folder="job"), time_limit_s=60, memory_limit_bytes=limit)
    assert "its limit is 0.20 GiB" in ended.failure


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="this kernel does not tell shared pages")
def test_memory_that_forked_workers_share_counts_once(work: Path) -> None:
    command = [sys.executable, "-c", SHARING]
    ended = run_supervised(command, Job(mode="trial", folder="job"), time_limit_s=60, memory_limit_bytes=300 * 2**20)
    assert ended.code == 0, ended.failure


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="this kernel does not tell mapped pages")
def test_mapped_file_does_not_count_as_memory(work: Path) -> None:
    library = next(
        Path(find_spec("torch").origin).parent.glob("lib/libtorch_cpu.*")
    )  # a large file that is not in a tmpfs
    limit = library.stat().st_size // 2
    command = [sys.executable, "-c", MAPPING.format(path=str(library))]
    ended = run_supervised(command, Job(mode="trial", folder="job"), time_limit_s=60, memory_limit_bytes=limit)
    assert ended.code == 0, ended.failure


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; print('no data here'); sys.exit(3)", "exited with 3: no data here"),
        ("input('Which? ')", "reads input"),
        ("print('hello')", "never imported Lightning's Trainer"),
        ("import lightning.pytorch.trainer.trainer", "never built a Trainer"),
    ],
)
def test_error_has_the_output_when_nothing_was_measured(work: Path, code: str, told: str) -> None:
    put_stand_in(work)
    command = [sys.executable, "-c", code]
    ended = run_supervised(command, Job(mode="trial", folder="job"), time_limit_s=60)
    assert told in explain(command, ended)


@pytest.mark.parametrize(("given", "is_told"), [("1 2\n", True), ("", False)])
@pytest.mark.parametrize("is_pipe", [True, False])
def test_error_says_that_runs_get_no_input_when_there_is_some(
    work: Path, given: str, is_told: bool, is_pipe: bool
) -> None:
    file = work / "rows.txt"
    file.write_text(given)
    reading, writing = os.pipe() if is_pipe else (os.open(file, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY))
    os.write(writing, given.encode())
    os.close(writing)
    kept = os.dup(0)
    os.dup2(reading, 0)
    try:
        command = [sys.executable, "-c", "import sys; print(sys.stdin.readlines()[0])"]
        reason = explain(command, run_supervised(command, Job(mode="trial", folder="job"), time_limit_s=60))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)
    assert "IndexError" in reason
    assert ("get no standard input" in reason) is is_told


def test_measured_command_does_not_wait_for_leftover_processes(work: Path) -> None:
    leaves = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    measured = leaves + "open('job/result.json', 'w').write('{\"status\": \"ok\"}')"
    ended = run_supervised([sys.executable, "-c", measured], Job(mode="trial", folder="job"), time_limit_s=60)
    assert ended.failure == ""
    assert ended.wall_s < _STRAGGLERS_S  # waits this long if nothing was measured


def test_shell_script_does_not_go_on_after_the_measured_program(work: Path) -> None:
    (work / "measured.py").write_text(MEASURED)
    command = ["sh", "-c", f"{sys.executable} measured.py; sleep 600; echo done > after"]
    ended = run_supervised(command, Job(mode="trial", folder="job"), time_limit_s=60)
    assert ended.failure == ""
    assert ended.wall_s < 60
    assert (work / "session").exists()
    assert not (work / "after").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_command_ends_when_its_supervisor_is_killed(work: Path) -> None:
    code = "import os, time; open('pids', 'w').write(f'{os.getppid()} {os.getpid()}'); time.sleep(600)"
    script = RUNS.replace('"restless.py"', f'"-c", {code!r}')
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, env={**os.environ})
    assert wait_for(lambda: len(pids(work)) == 2)
    supervisor, command = pids(work)
    os.kill(supervisor, signal.SIGKILL)
    assert wait_for(lambda: not is_alive(command))
    assert parent.wait(timeout=60) != 0


def test_ended_processes_do_not_count_on_a_system_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])  # a zombie until this process waits for it
    assert wait_for(lambda: not is_alive(ended.pid))
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    assert ended.pid not in process_supervisor._descendants()
    monkeypatch.undo()
    ended.wait()


def test_run_ends_although_its_process_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    command = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(process_supervisor, "_descendants", lambda: [command.pid])
    monkeypatch.setattr(process_supervisor, "_wait_for_close", lambda: False)
    monkeypatch.setattr(process_supervisor, "_KILL_S", 0.1)
    monkeypatch.setattr(os, "kill", refuse)
    ended = {"code": None, "reason": ""}
    spec = {"time_limit_s": 1.0, "memory_limit_bytes": None, "result": "", "events": ""}
    process_supervisor._watch(command, spec, ended, started=time.monotonic() - 2)
    monkeypatch.undo()
    command.kill()
    command.communicate()
    assert ended == {"code": None, "reason": "it ran past its time limit of 1 s"}


def test_session_of_an_earlier_run_in_the_folder_is_ignored(work: Path) -> None:
    job = Job(mode="trial", folder="job")
    Result(status="ok", n_steps=5).write(job.folder)
    note(job, "trainer")
    ended = run_supervised([sys.executable, "-c", "pass"], job, time_limit_s=60)
    assert ended.result is None
    assert "never imported Lightning's Trainer" in ended.failure


def test_error_names_the_command_when_it_does_not_exist(work: Path) -> None:
    ended = run_supervised(["no-such-command"], Job(mode="trial", folder="job"))
    assert "command not found" in explain(["no-such-command"], ended)
