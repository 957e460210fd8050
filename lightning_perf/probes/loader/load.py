"""Generate a compute load like the training's next to a loader's workers."""

import hashlib
import statistics
import threading
import time
from collections.abc import Callable

_CHUNK = bytes(256 * 1024)  # 0.1 to 1 ms of hashing; hashing releases the interpreter lock
_MIN_STEP_S = 20e-6


class Load:
    """Compute load of one step: ``threads`` threads that compute for ``seconds`` if nothing else uses their cores.

    The amount of work per step is fixed, so that a step takes longer if workers use its cores, as in training. Several
    threads work in rounds that end with the slowest thread, as operators do. Calibration takes at most ``budget_s``.
    """

    def __init__(self, seconds: float, threads: int, budget_s: float) -> None:
        self._n_rounds = 0
        self._threads = threads if seconds > _MIN_STEP_S else 1
        self._begin, self._end = threading.Barrier(self._threads), threading.Barrier(self._threads)
        self._size = len(_CHUNK)
        for _ in range(self._threads - 1):
            threading.Thread(target=self._follow, daemon=True).start()
        self.seconds = 0.0
        """Seconds per step, as measured."""
        self.spread_s = 0.0
        """Half of the interquartile range of the measured seconds per step."""
        if seconds > _MIN_STEP_S:
            self._calibrate(seconds, budget_s)

    def step(self) -> None:
        for _ in range(self._n_rounds):
            self._round()

    def _calibrate(self, seconds: float, budget_s: float) -> None:
        begin_s = time.perf_counter()
        self._set_rounds(seconds, min(_timed(self._round) for _ in range(3)))
        first_s = self._times(begin_s + 0.3 * budget_s)
        self._set_rounds(seconds, statistics.median(first_s) / self._n_rounds)  # many rounds are slower than a few
        times_s = self._times(begin_s + budget_s)
        self.seconds = statistics.median(times_s)
        low_s, _, high_s = statistics.quantiles(times_s, n=4) if len(times_s) > 1 else times_s * 3
        self.spread_s = (high_s - low_s) / 2

    def _set_rounds(self, seconds: float, round_s: float) -> None:
        round_s *= len(_CHUNK) / self._size
        self._n_rounds = max(1, round(seconds / round_s))
        self._size = max(2048, int(len(_CHUNK) * min(1.0, seconds / round_s)))

    def _times(self, until_s: float) -> list[float]:
        times_s = [_timed(self.step)]
        while time.perf_counter() + times_s[-1] < until_s:
            times_s.append(_timed(self.step))
        return times_s

    def _round(self) -> None:
        self._begin.wait()
        hashlib.sha256(memoryview(_CHUNK)[: self._size])
        self._end.wait()

    def _follow(self) -> None:
        while True:
            self._round()


def _timed(work: Callable[[], None]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s
