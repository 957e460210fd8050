"""Decide when to diagnose within an epoch, so that a run that dies leaves a recent diagnosis."""

from collections.abc import Callable

from lightning_perf.probes.base import Probe
from lightning_perf.probes.timeline.loop import LoopTimer
from lightning_perf.stats.changepoint import LevelWatch

FIRST_STEADY_STEPS, FIRST_S = 200, 10.0
"""Steps and time that must both have passed before the first diagnosis: medians are stable by then."""

FIRST_SLOW_STEPS, FIRST_SLOW_S = 20, 60.0
"""The same for long steps: outliers and steadiness are known from 20 steps on."""

MAX_INTERVAL_S = 300.0
"""Longest time between two diagnoses; until then, each is made at twice the time of the last one."""

COST_FACTOR = 100
"""Least time between two diagnoses, as a multiple of the duration of the last one: at most 1 % of the run."""

CHANGE = 1.3
"""Change of the median step since the last diagnosis that causes another one, as a factor."""

CHECK_S = 1.0
MAX_CHECK_EVERY = 128  # steps: they may become longer before the next check


class DiagnosisSchedule(Probe):
    """Observes about one step per second, at whose end a diagnosis may be due.

    Attributes:
        is_due: Whether to diagnose before the next step.
    """

    name = "diagnosis_schedule"
    next_step = 0

    def __init__(self, loop: LoopTimer, now_ns: Callable[[], int]) -> None:
        self.is_due = False
        self._loop, self._now_ns = loop, now_ns
        self._start_ns: int | None = None
        self._checked_ns, self._checked_step = 0, 0
        self._diagnosed_s: float | None = None  # since the start, as of the last diagnosis
        self._took_ns = 0
        self._median_ns: float | None = None
        self._level = LevelWatch(CHANGE)

    def step_ends(self) -> None:
        """Decide whether a diagnosis is due."""
        now_ns, n_steps = self._now_ns(), self._loop.main.n_steps + 1  # with the one that ends
        if self._start_ns is None:
            self._start_ns = self._checked_ns = now_ns
            self._checked_step = n_steps
        passed_s = (now_ns - self._checked_ns) / 1e9
        steps_per_s = (n_steps - self._checked_step) / passed_s if passed_s > 0 else 1.0
        self.next_step = n_steps - 1 + max(1, min(MAX_CHECK_EVERY, int(CHECK_S * steps_per_s)))
        if passed_s < CHECK_S:
            return
        if self._loop.is_profiling or self._loop.on_record_end is not None:
            self.next_step = n_steps  # the step is in a profiler window or sampled: neither may contain a diagnosis
            return
        self._checked_ns, self._checked_step = now_ns, n_steps
        self._median_ns = self._loop.main.recent_median_ns()
        self.is_due = self._is_due(n_steps, (now_ns - self._start_ns) / 1e9)

    def diagnosed(self, took_ns: int | None = None) -> None:
        """Note a diagnosis that ends now; ``took_ns`` is its duration, None at the end of an epoch."""
        self.is_due = False
        if self._start_ns is not None:
            self._diagnosed_s = (self._now_ns() - self._start_ns) / 1e9
        if took_ns is not None:
            self._took_ns = took_ns
        self._level.restart(self._median_ns)

    def _is_due(self, n_steps: int, now_s: float) -> bool:
        has_changed = self._level.has_changed(self._median_ns)
        if self._diagnosed_s is None:
            return self._is_first_due(n_steps, now_s)
        wait_s = FIRST_S if has_changed else max(FIRST_S, self._diagnosed_s)
        wait_s = max(min(wait_s, MAX_INTERVAL_S), COST_FACTOR * self._took_ns / 1e9)
        return now_s - self._diagnosed_s >= wait_s

    def _is_first_due(self, n_steps: int, now_s: float) -> bool:
        if n_steps >= FIRST_SLOW_STEPS and now_s >= FIRST_SLOW_S:
            return True
        if n_steps < FIRST_STEADY_STEPS or now_s < FIRST_S:
            return False
        steady = self._loop.main.stage_times()
        return steady is not None and steady.n_steps >= FIRST_STEADY_STEPS
