"""A background thread in which a probe measures."""

import threading
import weakref
from collections.abc import Callable

from lightning_perf import interrupts


class BackgroundThread:
    """A daemon thread that calls a method of a probe until it is stopped or nothing else references the probe.

    ``turn`` returns the seconds until its next call; None repeats the last pause. If it raises, the thread ends, and
    the error is stored as the probe's ``error`` for the training thread to report. ``close`` waits up to ``join_s``
    seconds for the thread to end.

    Attributes:
        stopping: Set to end the thread, also by the probe itself.
        thread: None before the start and after the end.
    """

    def __init__(self, name: str, turn: Callable[[], float | None], join_s: float = 2.0) -> None:
        self.stopping = interrupts.Latch()
        self.thread: threading.Thread | None = None
        self._name, self._turn, self._join_s = name, weakref.WeakMethod(turn), join_s

    def start(self, pause_s: float) -> None:
        """Start; the first call comes after ``pause_s`` seconds."""
        self.thread = threading.Thread(target=self._run, args=(pause_s,), name=self._name, daemon=True)
        self.thread.start()

    def close(self) -> bool:
        """Stop; return whether the thread has ended. Can be called twice."""
        self.stopping.set()
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            with interrupts.suppress(RuntimeError):  # an interrupt came before it was started
                thread.join(self._join_s)
        has_ended = thread is None or not thread.is_alive()
        if has_ended:
            self.thread = None
        return has_ended

    def _run(self, pause_s: float) -> None:
        while not self.stopping.wait(pause_s):
            turn = self._turn()
            if turn is None:
                return
            try:
                pause_s = turn() or pause_s
            except Exception as error:  # noqa: BLE001 - kept for the training thread, which reports it
                turn.__self__.error = error  # type: ignore[attr-defined]
                return
            del turn
