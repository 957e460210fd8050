"""A forked child: its results and what ended it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_perf.probes.loader import child as child_module
from lightning_perf.probes.loader.child import Child, Ended, Reporter

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")


def ended(work: Callable[[Reporter], None]) -> Ended:
    child = Child(30.0)
    child.start(work)
    until = time.monotonic() + 30
    while (how := child.poll()) is None and time.monotonic() < until:
        time.sleep(0.005)
    child.close()
    return how


def reports_then(act: Callable[[], object]) -> Callable[[Reporter], None]:
    def work(report: Reporter) -> None:
        report(b"little")
        report(b"more")
        act()

    return work


def exits() -> None:
    raise SystemExit(3)


def divides() -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("act", "failure"),
    [
        (lambda: None, ""),
        (divides, "its process raised ZeroDivisionError: division by zero"),
        (exits, "its process raised SystemExit: 3"),
        (lambda: os._exit(4), "its process ended with exit code 4"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its process was killed by SIGKILL"),
    ],
    ids=["nothing", "raises", "exits", "ends", "killed"],
)
def test_child_reports_its_results_and_why_it_ended(act: Callable[[], object], failure: str) -> None:
    assert ended(reports_then(act)) == Ended(b"more", failure)


def test_reports_stay_apart_when_they_contain_newlines() -> None:
    def work(report: Reporter) -> None:
        report(b"two\nlines")
        report(b"no such\n-file", is_error=True)

    assert ended(work) == Ended(b"two lines", "no such -file")


def test_last_whole_report_counts_when_the_child_is_killed_in_the_middle_of_one() -> None:
    def work(report: Reporter) -> None:
        report(b"whole")
        os.write(report.descriptor, b"+cut o")
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended(work) == Ended(b"whole", "its process was killed by SIGKILL")


def test_child_ends_with_an_error_code_when_reporting_fails() -> None:
    def work(report: Reporter) -> None:
        os.close(report.descriptor)
        divides()

    assert ended(work) == Ended(b"", "its process ended with exit code 1")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has half a minute for its cleanup: a busy machine may not run it within half a second."""
    monkeypatch.setattr(child_module, "GRACE_S", 30.0)


def started(work: Callable[[Reporter], None], ready: Path) -> Child:
    child = Child(300.0)
    child.start(work)
    until = time.monotonic() + 30
    while not ready.exists() and time.monotonic() < until:
        time.sleep(0.005)
    assert ready.exists()
    return child


def with_lock(lock: Path, hang: Callable[[], object]) -> Callable[[Reporter], None]:
    """Return work that hangs while it holds a lock file, as a sample may."""

    def work(_: Reporter) -> None:
        try:
            lock.touch()
            hang()
        finally:
            lock.unlink()

    return work


@pytest.mark.parametrize("is_late", [False, True], ids=["closed", "late"])
@pytest.mark.usefixtures("patience")
def test_code_of_a_child_is_unwound_when_it_is_ended(tmp_path: Path, is_late: bool) -> None:
    lock = tmp_path / "lock"
    child = started(with_lock(lock, lambda: time.sleep(3600)), lock)
    if is_late:
        child._deadline_s = 0.0
        while child.poll() is None:
            time.sleep(0.005)
    child.close()
    assert not lock.exists()
    assert not child.is_alive


@pytest.mark.usefixtures("patience")
def test_signal_is_sent_again_when_the_child_missed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal just before the system call of ``time.sleep`` does not interrupt it."""
    lock = tmp_path / "lock"
    child = started(with_lock(lock, lambda: time.sleep(3600)), lock)
    with monkeypatch.context() as patched:
        patched.setattr(child, "_send", lambda number: None)
        child._ask_to_end(30.0)
    child.close()
    assert not lock.exists()
    assert not child.is_alive


@pytest.mark.usefixtures("patience")
def test_blocks_around_the_fork_are_not_unwound_when_a_child_is_ended(tmp_path: Path) -> None:
    mine, lock = tmp_path / "mine", tmp_path / "lock"
    mine.touch()
    pid = os.getpid()
    try:
        started(with_lock(lock, lambda: time.sleep(3600)), lock).close()
    finally:
        if os.getpid() != pid:  # the child has left the block that it was forked in
            mine.unlink()
            os._exit(0)
    assert mine.exists()


def test_child_is_killed_when_its_code_does_not_end(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def work(_: Reporter) -> None:
        while True:
            with contextlib.suppress(BaseException):
                ready.touch()
                time.sleep(3600)

    child = started(work, ready)
    child.close()
    assert not child.is_alive


def test_processes_that_a_child_started_end_when_it_is_closed(tmp_path: Path) -> None:
    ready = tmp_path / "pid"

    def work(_: Reporter) -> None:
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)
        (tmp_path / "part").write_text(str(pid))
        (tmp_path / "part").rename(ready)
        time.sleep(3600)

    started(work, ready).close()
    status = Path("/proc", ready.read_text(), "stat")
    until = time.monotonic() + 30
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < until, "a process that the child started outlived it"
        time.sleep(0.005)


def test_child_that_ended_in_time_is_not_late_when_it_is_polled_late() -> None:
    child = Child(30.0)
    child.start(reports_then(lambda: None))
    os.waitid(os.P_PID, child._pid, os.WEXITED | os.WNOWAIT)
    child._deadline_s = 0.0
    assert child.poll() == Ended(b"more", "")
    child.close()
