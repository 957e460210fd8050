"""Sample the training thread's stack from another thread, in short bursts.

While the sampler waits for its next sample within a burst, it lowers the interpreter's switch interval to 0.05 ms.
With the usual 5 ms, it gets the interpreter lock mainly where the training releases it, in operators and sleeps; with
0.1 ms, still where lines of Python that are shorter than this alternate with operators. Where C calls hold the lock
for long, it is 0.1 ms, because the sampler wakes once per interval. benchmarks/host_lines compares intervals, and
pyinstrument's profile function, which is as accurate but lengthens steps by 20 to 45 %.

A sample is weighted by the mean pause plus its delay: the time of a C call that holds the lock is thus charged to the
line that called it. Pauses are distributed exponentially, so that what follows such a call is sampled as often as
anything else (Wolff, Poisson arrivals see time averages, Operations Research 30, 1982). For the same reason the time of
a burst is set before it begins, a call that holds the lock is charged with all bursts that it covers in part, and the
rests between bursts depend on what recent bursts cost, which such a call hardly changes.
"""

import ctypes
import functools
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from lightning_perf.probes.background import BackgroundThread
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.telemetry.pauses import GarbagePauses
from lightning_perf.probes.timeline.spans import OWN
from lightning_perf.probes.timeline.step_aggregator import SLOW_FACTOR
from lightning_perf.records import STEP_PHASES, HostProfile, Session, StageTimes

from .profile import PhaseSamples, ProfileBuilder
from .stacks import StackReader, frames_of, why_no_stacks

MAX_SHARE = 0.005
"""Share of the run's time that sampling may cost."""

PAUSE_S = 2e-3
_BURST_NS = 10_000_000
"""Length of a burst: many short ones rather than few long ones, whose samples often fall on the same line."""

SWITCH_S, LONG_SWITCH_S = 5e-5, 1e-4
_LONG_NS = 1_000_000
"""Mean delay of a sample above which C calls hold the lock for long."""

_SET_TIMER_SLACK, _SLACK_NS = 29, 1000  # of prctl; 50 µs are usual, by which a wait for the lock lasts longer

_ENOUGH_SAMPLES = 4000  # a share of 5 % is then known to within 0.7 points
_LATER_SHARE = 5e-4  # limit of the cost once there are so many
_LOCK_EXCHANGE_NS = 15_000  # per sample, to take the interpreter lock and return it; not in the sampler's CPU time
_WARMUP_STEPS = 3
_REST_S = 0.02  # least time between bursts
_EARLY_S = 5e-3  # before a burst; the usual switch interval, by which its first sample would otherwise be delayed
_MAX_BURSTS_OUTSIDE = 10
_SUSPENDED_NS, _SUSPENDED_SHARE = 10_000_000_000, 0.1
"""A longer delay in which the process computed for less than this share was no call: the process was suspended."""

_COST_BURSTS = 50  # over which the mean cost of a burst is taken

_lowered: list[tuple[float, float]] = []
"""The usual switch interval, and the one set, while it is lowered; a process forked meanwhile restores it."""


class LineSampler(Probe):
    """Sampler of the training thread's lines in one run; created and started in that thread.

    ``now_ns``, ``frames`` and ``sleep`` are replaced in tests.
    """

    name = option = "host_lines"
    field, reason = "host_profile", "the run was too short to sample its lines, or sampling failed"
    after = ("steps", "collections")

    def __init__(
        self,
        run: RunContext,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        frames: Callable[[], dict[int, FrameType]] = sys._current_frames,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        pauses = run.probes.find(GarbagePauses)
        self._loop = run.loop
        self._paused_ns: Callable[[], int] = (lambda: 0) if pauses is None else pauses.automatic_so_far_ns
        self._now_ns, self._frames, self._sleep = now_ns, frames, sleep
        self._watched = threading.get_ident()
        self._reader = StackReader()
        self.loops = self._reader.loops
        self._builder = ProfileBuilder(self._reader)
        self._phases: dict[str, PhaseSamples] = {}
        self._slow: dict[str, PhaseSamples] = {}
        self._slow_ns = float("inf")
        self._lock = threading.Lock()
        self._n = 0
        self._late_ns = 0.0  # of all samples
        self._steps: tuple[int, int] | None = None
        self._draw = random.Random(0).random  # leaves all other random streams unchanged
        self._background = BackgroundThread("lightning-perf host lines", self.burst)
        self._begin_ns = now_ns()
        self._end_ns = self._begin_ns + _BURST_NS
        self._n_bursts = self._n_bursts_outside = 0
        self._mean_cost_ns = 0.0  # of a burst with samples
        self._gc_ns = 0  # until the last sample or burst
        self._cpu_ns = time.process_time_ns()  # until the last burst
        self._has_sharp_timers = False

    def start(self) -> None:
        if reason := why_no_stacks():
            self.missing["host_profile"] = reason
            return
        _register_fork()
        self._plan_burst(self._now_ns())
        self._background.start(self._rest_s())

    def close(self) -> None:
        self._background.close()

    def burst(self) -> float:
        """Sample until the burst's end; return the seconds to wait before the next burst."""
        cpu_ns = time.thread_time_ns()
        if not self._has_sharp_timers:
            self._has_sharp_timers = True
            _sharpen_timers()
        n_taken = n_outside = 0
        median_ns = self._loop.main.recent_median_ns()
        self._slow_ns = float("inf") if median_ns is None else SLOW_FACTOR * median_ns
        due_ns = self._begin_ns + self._pause_ns()
        while not self._background.stopping.is_set() and self._begin_ns <= due_ns < self._end_ns:
            if not self._is_undisturbed():
                self._plan_burst(self._now_ns())
                break
            is_inside = self._sample(due_ns)
            if is_inside is None:
                self._background.stopping.set()  # the training thread has ended
                break
            n_taken += 1
            n_outside += not is_inside
            due_ns = self._now_ns() + self._pause_ns()
        self._add_cost(time.thread_time_ns() - cpu_ns, n_taken)
        self._n_bursts_outside = self._n_bursts_outside + 1 if n_taken and n_outside == n_taken else 0
        if self._n_bursts_outside >= _MAX_BURSTS_OUTSIDE:
            self._background.stopping.set()  # the run ended without a call to stop
        if self._now_ns() >= self._begin_ns:  # else the next one is planned
            self._plan_burst(self._end_ns)
        self._gc_ns, self._cpu_ns = self._paused_ns(), time.process_time_ns()
        return self._rest_s()

    def _add_cost(self, cpu_ns: int, n_taken: int) -> None:
        cost_ns = cpu_ns + n_taken * _LOCK_EXCHANGE_NS
        self.cost_ns += cost_ns
        if n_taken:
            self._n_bursts += 1
            self._mean_cost_ns += (cost_ns - self._mean_cost_ns) / min(self._n_bursts, _COST_BURSTS)

    def _pause_ns(self) -> int:
        return int(-PAUSE_S * 1e9 * math.log(1.0 - self._draw()))

    def _rest_s(self) -> float:
        return max(1e-6, (self._begin_ns - self._now_ns()) / 1e9 - _EARLY_S)

    def _plan_burst(self, after_ns: int) -> None:
        share = MAX_SHARE if self._n < _ENOUGH_SAMPLES else _LATER_SHARE
        rest_s = max(_REST_S, self._mean_cost_ns / 1e9 / share)
        self._begin_ns = after_ns + int(rest_s * (0.5 + self._draw()) * 1e9)
        self._end_ns = self._begin_ns + _BURST_NS

    def _counted_delay_ns(self, due_ns: int) -> int:
        """Return how much of the time since then is in bursts, and set the time of the next one after those passed."""
        now_ns = self._now_ns()
        delay_ns = max(0, min(now_ns, self._end_ns) - due_ns)
        while now_ns > self._end_ns:
            self._plan_burst(self._end_ns)
            delay_ns += max(0, min(now_ns, self._end_ns) - self._begin_ns)
        return delay_ns

    def _is_undisturbed(self) -> bool:
        """Return whether the training runs as without PerfDoctor: no sampled step, window or report."""
        loop = self._loop
        main, timeline = loop.main, loop.timeline
        is_sampled = main.is_left_out or timeline.phase_listener is not None
        is_ours = is_sampled or loop.is_profiling or timeline.current.phase == OWN
        return main.n_steps >= _WARMUP_STEPS and not is_ours and not timeline.is_frozen

    def _sample(self, due_ns: int) -> bool | None:
        """Take a sample when it is due; return whether the run is still going on, None if its thread has ended."""
        switch_s = LONG_SWITCH_S if self._late_ns > _LONG_NS * self._n else SWITCH_S
        _wait(self._sleep, max(0, due_ns - self._now_ns()) / 1e9, switch_s)
        late_ns = max(0, self._now_ns() - due_ns)
        if late_ns > _SUSPENDED_NS and time.process_time_ns() - self._cpu_ns < _SUSPENDED_SHARE * late_ns:
            self._plan_burst(self._now_ns())
            return True
        delay_ns = self._counted_delay_ns(due_ns)
        gc_before_ns, self._gc_ns = self._gc_ns, self._paused_ns()
        gc_ns = delay_ns * min(1.0, (self._gc_ns - gc_before_ns) / late_ns) if late_ns else 0.0
        frames = frames_of(self._watched, self._frames)
        if not frames:
            return None
        stack = self._reader.read(frames)
        if stack is None:
            return False
        if not self._is_undisturbed():
            return True
        loop = self._loop
        name = loop.current_phase()
        step = loop.main.n_steps
        with self._lock:
            for phases in (self._phases, self._slow) if self._is_in_slow_step(name, late_ns) else (self._phases,):
                phase = phases.setdefault(name, PhaseSamples())
                phase.add(stack, PAUSE_S * 1e9 + delay_ns - gc_ns, gc_ns, late_ns, step)
            self._n += 1
            self._late_ns += late_ns
            self._steps = (step if self._steps is None else self._steps[0], step)
        return True

    def _is_in_slow_step(self, phase: str, late_ns: float) -> bool:
        """Return whether the current step is unusually slow, or the one that ended while a late sample waited."""
        timeline = self._loop.timeline
        passed_ns = sum(timeline.phase_ns) + self._now_ns() - timeline.last_ns
        return phase in STEP_PHASES and max(passed_ns, late_ns) > self._slow_ns

    def part(self, session: Session) -> Mapping[str, Any]:
        return {"host_profile": self.profile(session.steady)}

    def profile(self, steady: StageTimes | None) -> HostProfile | None:
        """Return the record of the samples so far; None before the first sample."""
        with self._lock:
            if self._steps is None:
                return None
            return self._builder.build(self._phases, self._slow, self._steps, self.cost_ns / 1e9, steady)


def _wait(sleep: Callable[[float], None], seconds: float, switch_s: float = SWITCH_S) -> None:
    """Sleep, and then wait for the interpreter lock with a short switch interval."""
    usual_s = sys.getswitchinterval()
    if usual_s <= switch_s:
        sleep(seconds)
        return
    _lowered.append((usual_s, switch_s))
    sys.setswitchinterval(switch_s)
    try:
        sleep(seconds)
    finally:
        _restore()


def _restore() -> None:
    """Restore the switch interval, unless another one was set meanwhile."""
    if _lowered:
        usual_s, switch_s = _lowered.pop()
        if abs(sys.getswitchinterval() - switch_s) < 1e-6:
            sys.setswitchinterval(usual_s)


def _sharpen_timers() -> None:
    """Let waits of this thread, which is the sampler's own, end on time; does nothing where Linux is not the system."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, _SLACK_NS, 0, 0, 0)


@functools.cache  # once per process: it cannot be undone
def _register_fork() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_restore)
