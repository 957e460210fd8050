"""Measure how long a rank waits for others inside backward, in a few sampled steps."""

import statistics
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes.clock import FIRST_SAMPLED_STEP, SAMPLES_KEPT, DeviceEvent, next_sampled_step
from lightning_perf.probes.timeline.spans import PHASE_INDEX, Timeline
from lightning_perf.seams import remove_hook


class BackwardWatch:
    """Sampler of the time that backward takes until this rank's own last gradient.

    DistributedDataParallel starts collectives while gradients are computed and waits for them at the end of backward:
    time after the last gradient is waiting, for the network and for slower ranks. Several backward passes of a step
    (manual optimization, closures of optimizers) are added up. On an idle device, the time of other callbacks'
    ``on_after_backward`` that run before this one counts as waiting too. ``make_event`` is None on a CPU. Which
    parameters are trained is checked in each sampled step.
    """

    def __init__(
        self, parameters: Iterable[Any], timeline: Timeline, make_event: Callable[[], DeviceEvent] | None = None
    ) -> None:
        self.n = 0
        self.n_unused: int | None = None
        """The most parameters without a gradient in one backward; None before the first sample."""
        self._own_ns: deque[int] = deque(maxlen=SAMPLES_KEPT)
        self._waiting_ns: deque[int] = deque(maxlen=SAMPLES_KEPT)
        self._parameters = tuple(parameters)
        self._timeline = timeline
        self._make_event = make_event
        self.is_on_device = make_event is not None
        """Whether times come from a device's clock."""
        self._marks: list[tuple[DeviceEvent, DeviceEvent, DeviceEvent]] = []
        """Events at the start, at the latest gradient and at the end of each backward pass of a step."""
        self._broadcast_marks = (make_event(), make_event()) if make_event is not None else None
        self._is_broadcast_marked = False
        self._is_unresolved = False
        self._step = 0
        self._next = FIRST_SAMPLED_STEP
        self._hooked: list[Any] = []  # the parameters that have our hook
        self._hook = self._on_gradient  # one object: `remove_hook` compares by identity
        self._error: Exception | None = None
        self._n_backwards = 0
        self._n_gradients = 0
        self._begin_ns = self._last_ns = self._step_ns = 0

    def batch_begins(self) -> bool:
        """Begin a step; return whether its backward is sampled."""
        self._step_ends()
        self._step += 1
        if self._step < self._next:
            return False
        self._resolve()
        self._next = next_sampled_step(self._step, self.n)
        if self._is_unresolved:  # the device is so far behind that it has not reached the last sample's end
            return False
        self._n_backwards = self._step_ns = 0
        trained = [one for one in self._parameters if one.requires_grad]
        self._hooked = trained  # set before hooks are added, so that stop() also removes them after an interrupt
        for one in trained:
            one.register_post_accumulate_grad_hook(self._hook)
        return True

    def before_backward(self) -> None:
        if not self._hooked:
            return
        self._n_gradients = 0
        if self._make_event is None:
            self._begin_ns = self._last_ns = self._backward_ns()
            return
        if len(self._marks) == self._n_backwards:
            self._marks.append((self._make_event(), self._make_event(), self._make_event()))
        self._marks[self._n_backwards][0].record()

    def after_backward(self) -> None:
        """Handle the end of a backward pass in a sampled step.

        Raises:
            Exception: The error of a gradient's hook or of a mark.
        """
        if self._error is not None:
            self.stop()
            raise self._error
        if not self._hooked or self._n_gradients == 0:
            return
        self.n_unused = max(self.n_unused or 0, len(self._hooked) - self._n_gradients)
        if self._make_event is not None:
            self._marks[self._n_backwards][2].record()
        self._step_ns += self._last_ns - self._begin_ns
        self._n_backwards += 1

    def broadcast_begins(self) -> None:
        """Mark the start of Lightning's broadcast before a step.

        The host also waits for the device's own work in it, so a device's time needs marks.
        """
        if self._broadcast_marks is None or self._step + 1 < self._next:
            return
        self._resolve()
        if not self._is_unresolved:
            self._is_broadcast_marked = False
            self._broadcast_marks[0].record()

    def broadcast_ends(self) -> None:
        if self._broadcast_marks is not None and self._step + 1 >= self._next and not self._is_unresolved:
            self._broadcast_marks[1].record()
            self._is_broadcast_marked = True

    def stop(self) -> None:
        for one in self._hooked:
            remove_hook([getattr(one, "_post_accumulate_grad_hooks", None) or {}], self._hook)
        self._hooked = []

    def own_s(self) -> float | None:
        """Return median seconds of a step's backward up to the last gradient; None before the first sample."""
        self._resolve()
        return statistics.median(self._own_ns) / 1e9 if self._own_ns else None

    def waiting_s(self) -> float | None:
        """Return median seconds that a device waits per step, in backward and in Lightning's broadcast.

        None before the first sample, and without a device: the host's timeline includes it.
        """
        self._resolve()
        return statistics.median(self._waiting_ns) / 1e9 if self._waiting_ns else None

    def guarded(self, function: Callable[[], None]) -> None:
        """Call a function where an error would break the user's code; ``after_backward`` raises the first one."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised by after_backward
            raise_if_from_signal(error)
            self._error = self._error or error

    def _step_ends(self) -> None:
        """End the sample of the last step."""
        if not self._hooked:
            return
        self.stop()
        if self._n_backwards == 0:
            return
        if self._make_event is not None:
            self._is_unresolved = True
            return
        self.n += 1
        self._own_ns.append(max(0, self._step_ns))

    def _on_gradient(self, _: Any) -> None:
        self.guarded(self._mark_gradient)

    def _mark_gradient(self) -> None:
        self._n_gradients += 1
        if self._make_event is None:
            self._last_ns = self._backward_ns()
        elif self._n_backwards < len(self._marks):  # not where the user's code calls ``loss.backward`` itself
            self._marks[self._n_backwards][1].record()

    def _backward_ns(self) -> int:
        """Return the nanoseconds of this step's backward so far, without callbacks inside it."""
        self._timeline.charge()
        return self._timeline.phase_ns[PHASE_INDEX["backward"]]

    def _resolve(self) -> None:
        if not self._is_unresolved:
            return
        used = self._marks[: self._n_backwards]
        if not used[-1][2].query():
            return
        own_ms = sum(begin.elapsed_time(last) for begin, last, _ in used)
        waiting_ms = sum(last.elapsed_time(end) for _, last, end in used)
        if self._is_broadcast_marked and self._broadcast_marks is not None:
            begin, end = self._broadcast_marks
            waiting_ms += begin.elapsed_time(end)
        self.n += 1
        self._own_ns.append(max(0, int(own_ms * 1e6)))
        self._waiting_ns.append(max(0, int(waiting_ms * 1e6)))
        self._is_unresolved = False


class MarkedBroadcast:
    """Context around Lightning's broadcast that times it on the device in sampled steps."""

    def __init__(self, watch: BackwardWatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.guarded(self._watch.broadcast_begins)

    def __exit__(self, *exception: object) -> None:
        self._watch.guarded(self._watch.broadcast_ends)


def backward_watch(
    trainer: Any, timeline: Timeline, make_event: Callable[[], DeviceEvent] | None
) -> tuple[BackwardWatch | None, str]:
    """Return the watch for a run and an empty reason; or None and why waiting cannot be measured."""
    model = trainer.strategy.model
    if not isinstance(model, DistributedDataParallel):
        return None, f"{type(trainer.strategy).__name__}: collectives are not at the end of backward"
    if trainer.strategy.root_device.type != "cpu" and make_event is None:
        return None, "the device's clock is off"
    return BackwardWatch(model.parameters(), timeline, make_event), ""
