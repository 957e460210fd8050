"""Forward, backward and optimizer on the device's own clock, in sampled steps.

Events in the device's queue mark where phases begin and end, and are read once the device has passed them: nothing
waits for it. A phase lasts from when the device reaches its first event until it reaches its last. That includes the
time in which the device is idle, e.g. because the host launches work too slowly.
"""

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec

from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.clock import (
    FEW_STEPS,
    FIRST_SAMPLED_STEP,
    SAMPLES_KEPT,
    DeviceClock,
    DeviceEvent,
    next_sampled_step,
)
from lightning_perf.records import Session

_MAX_MARKS = 1024
"""Events in one step; manual optimization may run any number of backward passes in one."""

_PHASES = {"training_step": "forward", "zero_grad": "optimizer", "backward": "backward", "optimizer_step": "optimizer"}
_OUTSIDE = ""


class DevicePhases(Probe):
    """Times the phases of sampled steps by the events of the device's clock."""

    name = "device_phases"
    stages = ("fit",)
    after = ("sampled_steps",)  # both listen to the parts of a step, which only one probe at a time can
    next_step = FIRST_SAMPLED_STEP

    def __init__(self, run: RunContext, clock: DeviceClock) -> None:
        self._loop, self._clock, self._now_ns = run.loop, clock, run.now_ns
        self._on_fail = partial(run.probes.switch_off, self.name)
        self._n_sampled = 0
        self._is_off = self._is_sampling = self._is_captured = self._is_pending = False
        self._phases: list[str] = []  # those under way, innermost last
        self._events: list[DeviceEvent] = []  # reused by each sample
        self._begun: list[str] = []  # the phase that begins at each event; ``_OUTSIDE`` for none
        self._samples: deque[dict[str, float]] = deque(maxlen=SAMPLES_KEPT)

    @classmethod
    def open(cls, run: RunContext) -> "DevicePhases | None":
        """Time the phases of a fit where the device has a clock; ``steady.device`` says why it has none."""
        clock = run.loop.main.device_clock
        return None if clock is None else cls(run, clock)

    def step_begins(self, batch: Any) -> None:
        """Begin a sample, unless another probe observes this step or the device is far behind."""
        self._guarded(self._begin)

    def enters(self, name: str) -> None:
        if name in _PHASES:
            self._phases.append(_PHASES[name])
            self._guarded(self._mark)

    def leaves(self, name: str) -> None:
        """Mark the end of a part; the phase around it continues."""
        if name in _PHASES and self._phases:
            self._phases.pop()
            self._guarded(self._mark)

    def step_ends(self) -> None:
        """End the sample; leave it out if another probe made the step longer, or a CUDA graph was captured in it."""
        if not self._is_sampling:
            return
        self.close()
        self._n_sampled += 1
        self.next_step = next_sampled_step(self._loop.main.n_steps, self._n_sampled)
        self._is_pending = bool(self._begun) and not (self._is_captured or self._loop.main.is_left_out)

    def abandon(self) -> None:
        self._is_off = True
        self.close()

    def close(self) -> None:
        self._is_sampling = False
        if self._loop.timeline.phase_listener is self:
            self._loop.listen(None)

    def run_ends(self, error: BaseException | None) -> None:
        """Read nothing more from a device that may have failed."""
        if error is not None:
            self._is_pending = False

    def _begin(self) -> None:
        loop = self._loop
        if loop.is_profiling or loop.timeline.phase_listener not in (None, self):
            return
        self._resolve()
        if self._is_pending:
            self.next_step = loop.main.n_steps + FEW_STEPS
            return
        self._phases.clear()
        self._begun.clear()
        self._is_sampling, self._is_captured = True, False
        loop.listen(self)

    def _mark(self) -> None:
        phase = self._phases[-1] if self._phases else _OUTSIDE
        if not self._is_sampling or self._is_captured or (self._begun and self._begun[-1] == phase):
            return
        # In a graph, an event is part of the graph: it is reached when the graph is replayed.
        self._is_captured = self._clock.is_capturing()
        if self._is_captured:
            return
        if len(self._begun) == len(self._events):
            if len(self._events) == _MAX_MARKS:
                raise RuntimeError(f"more than {_MAX_MARKS} phases in a step")
            self._events.append(self._clock.make_event())
        self._events[len(self._begun)].record()
        self._begun.append(phase)

    def _guarded(self, function: Callable[[], None]) -> None:
        if self._is_off:
            return
        begin = self._now_ns()
        try:
            function()
        except Exception as error:  # noqa: BLE001 - reported; nothing is marked any more, the training goes on
            self.abandon()
            self._on_fail(error)
        self.step_cost_ns += self._now_ns() - begin

    def _resolve(self) -> None:
        """Read the last sample if the device has passed its events."""
        if not self._is_pending or self._clock.is_capturing():
            return
        events = self._events[: len(self._begun)]
        if not all(event.query() for event in reversed(events)):
            return
        self._is_pending = False
        sample: dict[str, float] = {}
        for phase, (begin, end) in zip(self._begun, pairwise(events), strict=False):
            if phase != _OUTSIDE:
                sample[phase] = sample.get(phase, 0.0) + max(0.0, begin.elapsed_time(end)) / 1e3
        self._samples.append(sample)

    def part(self, session: Session) -> Mapping[str, Any]:
        self._guarded(self._resolve)
        steady, samples = session.steady, self._samples
        if steady is None or steady.device is None or not samples:
            return {}
        names = {name: None for sample in samples for name in sample}
        phases = {name: statistics.median(sample.get(name, 0.0) for sample in samples) for name in names}
        device = msgspec.structs.replace(steady.device, phases=phases, n_phases_sampled=len(samples))
        return {"steady": msgspec.structs.replace(steady, device=device)}

    def reasons(self) -> Mapping[str, str]:
        reason = "no sampled step was resolved on the device yet"
        if self._is_off:
            reason = "measuring failed; see probes_off"
        return {} if self._samples else {"steady.device.phases": reason}
