"""Run a measurement in a forked child process without side effects on its parent."""

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

_CHILD_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM")
    if hasattr(signal, name)
)
"""Signals for which a launcher or the user may have installed handlers that must not run in the child."""

_PARENTS_STREAMS: list[Any] = []
"""The parent's streams, kept alive in the child: closing one would write its buffer a second time."""

GRACE_S = 0.5
"""Seconds for the user's code in the child to clean up before the child is killed."""

_ASK_EVERY_S = 0.1
"""A signal just before a system call that blocks, such as a sleep, does not interrupt it; the next one does."""

_fork_lock = threading.Lock()
_RESULT, _ERROR = b"+", b"-"
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of linux/prctl.h


class Reporter(NamedTuple):
    """Function that writes all results so far, or an error, to a file; the last report of each kind counts.

    The child must not close ``descriptor``.
    """

    descriptor: int

    def __call__(self, content: bytes, is_error: bool = False) -> None:
        """Append a report, on one line: newlines become spaces."""
        content = (_ERROR if is_error else _RESULT) + content.replace(b"\n", b" ") + b"\n"
        while content:
            content = content[os.write(self.descriptor, content) :]


class Ended(NamedTuple):
    """The last results of a child process (empty without any), and why it did not finish (empty if it did)."""

    results: bytes
    failure: str


class EndingError(BaseException):
    """Raised in the child, and in its workers, by the signal that ends them.

    It unwinds the ``with`` and ``finally`` blocks that the child entered, so that e.g. a temporary lock file or a named
    semaphore of a sample is removed. Blocks entered before the fork are not unwound: the child ends first.
    """


class Child:
    """One forked child at a time that runs a function and cleans up after itself.

    Forking gives the child the objects to measure without pickling them. ``os.fork`` is used because a daemonic process
    (as some launchers create) may not have children of ``multiprocessing``. The risks are those of a loader's own
    workers: a lock that another thread held at the fork stays locked in the child, which then hangs and is killed;
    using a CUDA context in the child raises an error.

    Call ``start`` once, ``poll`` now and then, and ``close`` at the end.
    """

    def __init__(self, limit_s: float) -> None:
        """Set the seconds after which the child is killed, with all that it started. ``start`` starts it."""
        self._limit_s = limit_s
        self._pid: int | None = None
        self._report_file: int | None = None
        self._deadline_s = 0.0
        self._kill_at_s: float | None = None  # None before it is asked to end
        self._ask_at_s = 0.0
        self._ended: Ended | None = Ended(b"", "not started")

    @property
    def is_alive(self) -> bool:
        """Whether the child was started and has not been reaped."""
        return self._pid is not None

    def start(self, work: Callable[[Reporter], None]) -> None:
        """Fork a child that runs ``work``; what that raises is reported as its failure.

        Raises:
            OSError: The limit of processes, memory or descriptors is reached.
        """
        report_file = _open_report_file()
        # A Ctrl-C in the child before it ignores signals would unwind the user's stack there.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _CHILD_SIGNALS)
            pid = _fork()
            if pid == 0:
                _run_child(report_file, work, self._limit_s)
            # Set before signals are unblocked: after a pending Ctrl-C, close() must know the child.
            self._pid, self._report_file, self._ended, self._kill_at_s = pid, report_file, None, None
            self._deadline_s = time.monotonic() + self._limit_s
        except OSError:
            os.close(report_file)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        with contextlib.suppress(OSError):  # the child does the same: whichever comes first
            os.setpgid(pid, pid)

    def poll(self) -> Ended | None:
        """Return how the child ended; None while it runs. Never blocks."""
        if self._ended is not None:
            self._reap()  # a killed process may end later
            return self._ended
        grace_s = min(GRACE_S, 0.1 * self._limit_s)
        is_late = time.monotonic() > self._deadline_s - grace_s
        if is_late:
            self._ask_to_end(grace_s)
        # Reap it before reading its reports, so that none is missing.
        how = self._reap()
        if how is not None or self._is_overdue():
            results, error = self._last_reports()
            is_cut_off = is_late and how != ""  # unless it had finished by then
            failure = f"it took longer than {self._limit_s:g} s" if is_cut_off else error or how or ""
            self._ended = Ended(results, failure)
            self._close_report_file()
        return self._ended

    def close(self) -> None:
        """End the child if it still runs, and close its file. May be called twice."""
        if self._ended is None:
            self._ended = Ended(self._last_reports()[0], "ended before it was done")
        self._close_report_file()
        self._ask_to_end(GRACE_S)
        # A killed process is gone within milliseconds unless the kernel itself waits for it, e.g. for a dead network
        # disk. The training does not wait for that.
        until_s = time.monotonic() + GRACE_S + 2.0
        while self._reap() is None and time.monotonic() < until_s:
            time.sleep(0.01)

    def _ask_to_end(self, grace_s: float) -> None:
        """Send SIGTERM, which unwinds the user's code; ``_reap`` sends it again, and the child reacts to it once."""
        if self._kill_at_s is None and self._pid is not None:
            now_s = time.monotonic()
            self._kill_at_s, self._ask_at_s = now_s + grace_s, now_s + _ASK_EVERY_S
            self._send(signal.SIGTERM)

    def _ask_again(self) -> None:
        if self._kill_at_s is not None and self._pid is not None and time.monotonic() > self._ask_at_s:
            self._ask_at_s = time.monotonic() + _ASK_EVERY_S
            with contextlib.suppress(PermissionError):
                os.kill(self._pid, signal.SIGTERM)

    def _is_overdue(self) -> bool:
        return self._kill_at_s is not None and time.monotonic() > self._kill_at_s

    def _reap(self) -> str | None:
        """Return why the child ended, empty if by itself; None while it runs. Kill it if it is overdue."""
        if self._pid is None:
            return ""
        if self._is_overdue():
            self._send(signal.SIGKILL)
        how = ""
        try:
            # Until it is reaped, its id is not reused, and still names the group of the processes that it started.
            ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                self._ask_again()
                return None
            if ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                how = f"its process was killed by {_signal_name(ended.si_status)}"
            elif ended.si_status != 0:
                how = f"its process ended with exit code {ended.si_status}"
            self._send(signal.SIGKILL)
            os.waitpid(self._pid, 0)
        except ChildProcessError:  # someone else's SIGCHLD handler has reaped it
            pass
        self._pid = None
        return how

    def _send(self, number: int) -> None:
        """Send a signal to the child and to all processes that it started."""
        assert self._pid is not None
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, number)

    def _last_reports(self) -> tuple[bytes, str]:
        """Return the child's last report of results and its last error; each is empty if there was none."""
        assert self._report_file is not None
        content = os.pread(self._report_file, os.fstat(self._report_file).st_size, 0)
        reports = content.split(b"\n")[:-1]  # without an incomplete last line
        last = {report[:1]: report[1:] for report in reports}
        return last.get(_RESULT, b""), last.get(_ERROR, b"").decode("utf-8", "replace")

    def _close_report_file(self) -> None:
        if self._report_file is not None:
            os.close(self._report_file)
            self._report_file = None


def error_line(error: BaseException) -> str:
    """Return the error's type and message on one line, even if its ``__str__`` raises."""
    return "".join(traceback.format_exception_only(type(error), error)).strip().replace("\n", " ")


def _fork() -> int:
    """Fork without the warning of Python 3.12 about other threads; ``Child`` documents that risk.

    A lock is held because all threads share the warning filters: each must restore what it saved itself.
    """
    if sys.version_info < (3, 12):
        return os.fork()
    with _fork_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _open_report_file() -> int:
    """Open a file without a name, which vanishes with its last descriptor; writing to it never blocks."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return os.memfd_create("lightning-perf")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- in the child -----------------------------------------------------------------------------------------------------


def _run_child(report_file: int, work: Callable[[Reporter], None], limit_s: float) -> NoReturn:
    """Run ``work``, and exit without running the parent's exit handlers or finalizers."""
    code = 1
    report = Reporter(report_file)
    try:
        try:
            _detach_from_parent(limit_s)
            work(report)
            _ignore_signals()
            code = 0
        except BaseException as error:  # noqa: BLE001 - even SystemExit must not unwind the parent's stack; it is reported
            _ignore_signals()
            report(f"its process raised {error_line(error)}"[:1000].encode("utf-8", "replace"), is_error=True)
    finally:  # also if reporting fails
        os._exit(code)


def unwind_on_signals() -> None:
    """Make signals that end the child raise ``EndingError``, only once: its cleanup is not interrupted."""
    for each in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, _raise_end)


def _raise_end(*_: Any) -> NoReturn:
    _ignore_signals()
    raise EndingError("the probe was ended")


def _ignore_signals() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises where a worker has ended as well
    for each in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, signal.SIG_IGN)


def _detach_from_parent(limit_s: float) -> None:
    """Detach the child from the parent's group, signals, streams, logs and garbage, and limit its duration."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for each in _CHILD_SIGNALS:
        signal.signal(each, signal.SIG_IGN if each == signal.SIGINT else signal.SIG_DFL)
    unwind_on_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CHILD_SIGNALS)
    # The child ends with its parent, and soon after its limit if the parent never polls again.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    # Collecting would run finalizers of the parent's objects: flush its files, close its connections.
    gc.disable()
    gc.freeze()
    faulthandler.disable()
    logging.disable(logging.CRITICAL)
    # If memory runs out, the kernel should end this process and not the training.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")
    _PARENTS_STREAMS.extend((sys.stdin, sys.stdout, sys.stderr))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    # Implemented in C, because C code that does not return keeps Python's signal handlers from running.
    faulthandler.dump_traceback_later(limit_s + 2 * GRACE_S, exit=True, file=nowhere)
    warnings.simplefilter("ignore")  # of forks beside that thread
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - they live as long as the child
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # As in torch's own workers: a pool of threads does not survive a fork.
    torch.set_num_threads(1)
