"""Clocks of the host and of the device."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from lightning_perf.interrupts import raise_if_from_signal

now_ns: Callable[[], int] = time.perf_counter_ns
"""The host's clock: monotonic nanoseconds."""

NEVER = 1 << 62
"""Index greater than that of any step: for a probe that observes no more steps."""


FIRST_SAMPLED_STEP = 11
SAMPLES_KEPT = 64
FEW_STEPS, _MANY_STEPS = 7, 97
"""Steps between two samples by a device's events: at first, and later. Primes, so that no usual number of accumulated
batches divides them."""

_N_FIRST_SAMPLES = 16


def next_sampled_step(step: int, n_samples: int) -> int:
    """Return the next step to sample, after ``step`` and so many samples."""
    return step + (FEW_STEPS if n_samples < _N_FIRST_SAMPLES else _MANY_STEPS)


class DeviceEvent(Protocol):
    """A marker in the device's work queue, like ``torch.cuda.Event``."""

    def record(self) -> None:
        """Put the mark behind all work queued so far."""

    def query(self) -> bool:
        """Return whether the device has reached the mark; never wait."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return milliseconds from this mark to ``end``; both must have been reached."""


class DeviceClock:
    """Measures what the device did around each fetch, without waiting for it.

    A pair of events encloses each fetch. If the host runs ahead of the device, both are adjacent in the queue and are
    passed at once; if the device finished before the batch came, the time between them is its idle time. Events are
    resolved some steps later, once ``query`` says they were reached, and reused. After the first fetches, only some in
    a row are measured, then some are left out: on a device, events are most of the clock's cost per step.

    ``make_event`` makes an event that measures time. ``on_fail`` gets the first error; nothing is marked from then on.
    ``is_capturing`` returns whether work goes into a CUDA graph now: events must then be neither recorded nor queried.
    """

    MAX_PENDING = 256
    """With this many pending steps the device is too far behind: new fetches are not measured."""

    N_FIRST, PERIOD, N_OF_PERIOD = 320, 61, 8
    """The first ``N_FIRST`` fetches are all measured, over the steps of the first aggregation; later, the first
    ``N_OF_PERIOD`` of each ``PERIOD``. A prime period measures each worker and each accumulated batch equally often."""

    def __init__(
        self,
        make_event: Callable[[], DeviceEvent],
        backend: str,
        on_fail: Callable[[Exception], None],
        is_capturing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.backend = backend
        self.is_capturing = is_capturing
        self._on_fail = on_fail
        self._has_failed = False
        self.make_event = make_event
        self._free: list[DeviceEvent] = []
        self._pending: deque[tuple[DeviceEvent, DeviceEvent, bool, bool]] = deque()
        self._open: DeviceEvent | None = None
        self._last_after: DeviceEvent | None = None
        self._has_gap = False  # fetches were left out since the last pair
        self._n_fetches = 0
        self._is_regular = False
        self.resolved: list[tuple[int, int, bool]] = []
        """(step_ns, starved_ns, is_regular) of the resolved fetches, since the owner last emptied the list.

        Regular are those that are also measured where some fetches are left out.
        """

    @property
    def leaves_out(self) -> bool:
        """Whether fetches have been left out."""
        return self._n_fetches > self.N_FIRST

    def before_fetch(self) -> bool:
        """Mark the start of the data wait; return whether this fetch is measured, so that its end must be marked."""
        n = self._n_fetches
        self._n_fetches += 1
        self._is_regular = 0 < n % self.PERIOD < self.N_OF_PERIOD  # the first of a period ends no measured step
        if n % self.PERIOD >= self.N_OF_PERIOD and n >= self.N_FIRST:
            self._has_gap = True
            return False
        if self._has_failed:
            return False
        try:
            if len(self._pending) >= self.MAX_PENDING:
                self._resolve()
            if len(self._pending) >= self.MAX_PENDING:
                self._has_gap = True
                return False
            self._open = self._event()
            self._open.record()
        except Exception as error:  # noqa: BLE001 - reported; the host's clock goes on
            self._fail(error)
            return False
        return True

    def after_fetch(self, is_counted: bool) -> None:
        """Mark the arrival of the batch. ``is_counted`` is False for the first fetch of an epoch."""
        if self._open is None:
            return
        try:
            after = self._event()
            after.record()
            # The time between this pair and one before a gap covers several steps.
            self._pending.append((self._open, after, is_counted and not self._has_gap, self._is_regular))
            self._open = None
            self._has_gap = False
            self._resolve()
        except Exception as error:  # noqa: BLE001 - reported, as above
            self._fail(error)

    def forget(self) -> None:
        """Drop pending marks, e.g. because the loop paused."""
        for before, after, _, _ in self._pending:
            self._free += (before, after)
        self._pending.clear()
        self._open = self._last_after = None
        self._has_gap = False

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self.forget()
        self._on_fail(error)

    def _event(self) -> DeviceEvent:
        return self._free.pop() if self._free else self.make_event()

    def _resolve(self) -> None:
        pending = self._pending
        while pending and pending[0][1].query():
            before, after, is_counted, is_regular = pending.popleft()
            if self._last_after is not None:
                if is_counted:
                    step_ms = self._last_after.elapsed_time(after)
                    starved_ms = before.elapsed_time(after)
                    self.resolved.append((int(step_ms * 1e6), int(starved_ms * 1e6), is_regular))
                self._free.append(self._last_after)
            self._free.append(before)
            self._last_after = after


def device_clock(device: Any, on_fail: Callable[[Exception], None]) -> tuple[DeviceClock | None, str]:
    """Return the clock of the device trained on and an empty reason, or None and why there is none."""
    if device.type == "cpu":
        return None, "the CPU has no device clock; the host's clock covers it"
    kind: Any = torch.cuda.Event if device.type == "cuda" else partial(torch.Event, device=device)
    make_event: Callable[[], DeviceEvent] = partial(kind, enable_timing=True)
    try:
        make_event().record()
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise_if_from_signal(error)
        return None, f"{device.type} has no timed events in torch {torch.__version__}: {error}"
    is_capturing = torch.cuda.is_current_stream_capturing if device.type == "cuda" else lambda: False
    return DeviceClock(make_event, device.type, on_fail, is_capturing), ""
