"""Files of a run whose folder is at a URL: written locally, then copied by a background thread."""

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from lightning_perf.interrupts import Latch, raise_if_from_signal, suppress
from lightning_perf.records import load
from lightning_perf.records.remote import RemotePath

_log = logging.getLogger("lightning_perf")


class RemoteFolder:
    """Local ``folder`` whose files are copied to the remote ``target``."""

    def __init__(self, target: RemotePath) -> None:
        self.target = target
        self.folder = Path(tempfile.mkdtemp(prefix="lightning-perf-"))
        self._copied: dict[Path, int] = {}  # when each file was last changed
        self._thread: threading.Thread | None = None

    def place_of(self, file: Path) -> RemotePath:
        """Return where a file of the local folder is copied to."""
        return self.target / file.relative_to(self.folder).as_posix()

    def copy_soon(self) -> None:
        """Copy what changed, in a thread; the next call retries what failed."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._try_copying, name="lightning-perf-copy", daemon=True)
            with suppress(RuntimeError):  # no thread can be started, e.g. while Python 3.12 ends
                thread.start()
                self._thread = thread

    def finish(self, limit_s: float, spare: "SpareThread | None" = None) -> None:
        """Copy the rest and remove the local folder; ``spare`` copies if no thread can be started.

        Raises:
            OSError: Not everything could be copied in time; the local folder stays.
            SessionError: A file there is no session, and was not replaced by one.
        """
        within(limit_s, self._finish_copying, spare)
        self.remove()

    def remove(self) -> None:
        """Remove the local folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _finish_copying(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._copy()

    def _try_copying(self) -> None:
        try:
            self._copy()
        except Exception as error:  # noqa: BLE001 - the end of the run tries again, and reports it
            raise_if_from_signal(error)
            _log.debug("copying to %s failed", self.target, exc_info=True)

    def _copy(self) -> None:
        for file in sorted(self.folder.rglob("*")):
            if file.name.startswith(".") or not file.is_file():  # being written
                continue
            changed_ns = file.stat().st_mtime_ns
            if self._copied.get(file) == changed_ns:
                continue
            place = self.place_of(file)
            if file.name.startswith("perf_session"):
                load(file).save(place)  # keeps what another run left there
            else:
                place.upload(file)
            self._copied[file] = changed_ns


class SpareThread:
    """A thread that waits for functions to call: Python 3.12 starts none while it ends."""

    def __init__(self) -> None:
        self._functions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        target = (self._functions,)
        threading.Thread(target=_call_each, args=target, name="lightning-perf-spare", daemon=True).start()

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the thread, after those before it."""
        self._functions.put(function)

    def close(self) -> None:
        """End the thread. Can be called twice."""
        self._functions.put(None)


def _call_each(functions: SimpleQueue[Callable[[], None] | None]) -> None:
    while (function := functions.get()) is not None:
        function()


def within(limit_s: float, function: Callable[[], None], spare: SpareThread | None = None) -> None:
    """Call a function in a thread and wait for it.

    Args:
        limit_s: How long to wait.
        function: What to call.
        spare: Calls it if no thread can be started.

    Raises:
        TimeoutError: It takes longer than the limit; it goes on, at most until the process ends.
        RuntimeError: No thread can be started, and there is no spare one.
        Exception: What it raises.
    """
    errors: list[Exception] = []
    is_done = Latch()

    def call() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            raise_if_from_signal(error)
            errors.append(error)
        finally:
            is_done.set()

    try:
        threading.Thread(target=call, name="lightning-perf-upload", daemon=True).start()
    except RuntimeError as refused:
        raise_if_from_signal(refused)
        if spare is None:
            raise
        spare.call(call)
    if not is_done.wait(limit_s):
        raise TimeoutError(f"not done after {limit_s:g} s")
    for error in errors:
        raise error
