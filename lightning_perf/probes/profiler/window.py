"""Decide when profiler windows open: by schedule, when needed, or on demand. ``recording.py`` records them."""

import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from lightning_perf import seams
from lightning_perf.interrupts import error_text
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.clock import NEVER
from lightning_perf.records import Session, Window
from lightning_perf.stats.changepoint import LevelWatch

from .recording import Recording, WindowOptions, active_profiler, annotation_for, why_no_nsys

REQUEST_FILE = "PROFILE_NOW"
"""Touching a file of this name in the run's folder opens a window, with ``schedule="auto"``."""

AUTO_SHARE = 0.01
"""Share of time that automatic windows may cost: the first one of the run's expected length, later ones of the time so
far, since an endless epoch promises any length."""

_AUTO_FIRST_COST_S = {"cpu": 0.3}  # seen for small models on CPUs; the first CUPTI start takes seconds
_AUTO_FIRST_COST_ELSEWHERE_S = 3.0
_AUTO_STEPS_BEFORE = 60  # after the warm-up
_AUTO_CHECK_EVERY = 64
_AUTO_MAX_CHECK_EVERY = 512  # for very short steps
_AUTO_CHECKED_S = 0.25  # checks that follow each other faster become less frequent
_AUTO_MAX_MEDIAN_EVERY = 512  # the interval between medians grows up to this
_AUTO_MAX_WINDOWS = 4
_AUTO_MOST_EXTRA_S = 0.1
"""Seconds that recording may add to a step: an event takes some microseconds, and some KiB of memory."""
_AUTO_READING_FACTOR = 10
"""Collecting and reading events takes about ten times as long as recording them: 3.5 s and 0.28 s for each step of
77,000 events on a CPU."""
_AUTO_CHANGE = 1.3  # a median step that changed by this factor opens another window
_REQUEST_CHECK_S = 2.0
_MAX_TRACES = 64  # windows with a trace in memory, so that an endless schedule does not fill it


class WindowProbe(Probe):
    """Probe that opens and closes profiler windows, and reads what they recorded.

    Between windows it observes few steps. Only the profiler synchronizes, when a window begins and ends. Statistics
    exclude the steps inside a window.
    """

    name = "windows"
    after = ("steps", "memory")

    def __init__(self, run: RunContext, options: WindowOptions, folder: Path) -> None:
        self.options = options
        self.windows: list[Window] = []
        self._loop, self._folder, self._is_worth_keeping = run.loop, folder, run.is_worth_keeping
        self._device, self._rank = run.trainer.strategy.root_device, run.trainer.global_rank
        self._on_no_files = partial(run.probes.switch_off, "traces")
        self._recording: Recording | None = None
        self._is_requested = False
        self._next_request_check = time.monotonic() + _REQUEST_CHECK_S
        self._median_at_window_ns = LevelWatch(_AUTO_CHANGE)
        self._next_median = 0
        self._check_every = _AUTO_CHECK_EVERY
        self._checked_s = -math.inf
        self._is_closed = False
        self._no_files: str | None = None  # why no more trace files are written
        self._n_scheduled = 0
        self._is_scheduled = False  # whether the open window is one of the schedule
        self._was_requested = False  # whether the user requested the open window
        self._is_second_try = False  # whether it repeats a window that validation ended
        if options.is_auto:
            self._next_check = _AUTO_STEPS_BEFORE
        else:
            self._next_check = options.skip_first + (options.wait or 0)
        self._planned_at = self._next_check

    @classmethod
    def open(cls, run: RunContext) -> "WindowProbe | None":
        options, folder, rank = run.window_options, run.folder, run.trainer.global_rank
        if options is None or folder is None or run.stage not in options.stages:
            return None
        return cls(run, options, folder) if options.ranks == "all" or rank in options.ranks else None

    def part(self, session: Session) -> Mapping[str, Any]:
        return {"windows": tuple(self.windows)}

    def request(self) -> None:
        """Open a window at the next step."""
        self._is_requested = True
        self._next_check = 0

    @property
    def next_step(self) -> int:
        return self._next_check if self._recording is None else self._step

    @property
    def _step(self) -> int:
        """Number of finished steps."""
        return self._loop.main.n_steps

    def step_begins(self, batch: Any = None) -> None:
        """Advance an open window, or open one, before the step runs."""
        if self._recording is not None:
            self._advance(self._recording)
        if self._recording is None and self._step >= self._next_check:
            self._check()

    evaluation_begins = step_begins

    def validation_begins(self) -> None:
        """End an open window: what follows belongs to no step.

        It is complete if this was its last step. Otherwise a new one opens after validation.
        """
        recording = self._recording
        if recording is None:
            return
        if recording.is_in_last_step:
            self._advance(recording)
            return
        self._give_up(recording, "incomplete", "validation began inside the window")
        self._is_second_try = not self._is_second_try
        if not self._is_second_try:
            self._next_check = self._step_of_next_check()
            return
        self._next_check = self._step
        if self._is_scheduled:
            self._is_scheduled = False
            self._n_scheduled -= 1
            self._planned_at = self._step
        elif self._was_requested:
            self._is_requested = True
        else:
            self._next_median = 0

    def close(self) -> None:
        self.run_ends(None)

    def run_ends(self, error: BaseException | None) -> None:
        """Close an open window, which stays incomplete; ``error`` is what ended the run."""
        try:
            if error is None and self._recording is not None and self._recording.is_in_last_step:
                self._advance(self._recording)
        finally:
            self._is_closed = True
            self._close_recording(error)

    def _close_recording(self, error: BaseException | None) -> None:
        recording = self._recording
        if recording is None:
            if not self.windows and not self.options.is_auto and self._step <= self._next_check:
                reason = f"the run ended after {self._step} steps, the first window opens after {self._next_check}"
                self.windows.append(_window(self._step, 0, "incomplete", reason))
            return
        cause = "the run ended" if error is None else f"{type(error).__name__} ended the run"
        self._give_up(recording, "incomplete" if error is None else "failed", f"{cause} inside the window")

    def _give_up(self, recording: Recording, status: Literal["failed", "incomplete"], cause: str) -> None:
        """Discard a recording without reading it."""
        recording.abandon()
        self._recording = None
        reason = f"{recording.reason}; {cause}"
        self.windows.append(_window(recording.first_step, recording.n_active, status, reason, recording.cost_s))
        self._loop.profiling(None)

    def _check(self) -> None:
        reason = self._reason_to_open()
        if reason is None or self._is_closed:
            return
        why_not = self._why_not()
        if why_not is not None:
            self.windows.append(_window(self._step, 0, "failed", f"{reason}; not opened: {why_not}"))
            self._next_check = self._planned_at = NEVER
            return
        self._loop.profiling(annotation_for(self.options.emit))
        try:
            self._recording = Recording(self.options, self._device, self._step, reason, self._most_step_s())
            self._recording.start()
        except Exception as error:  # noqa: BLE001 - recorded as a window that failed; the training goes on
            why = f"{reason}; {error_text(error)}"
            if self._recording is not None:
                self._recording.abandon()
                self._recording = None
            self._loop.profiling(None)
            self.windows.append(_window(self._step, 0, "failed", why))
            self._next_check = self._planned_at = NEVER

    def _reason_to_open(self) -> str | None:
        self._was_requested = self._is_requested
        if self._is_requested:
            self._is_requested = self._is_scheduled = False
            self._next_check = self._step_of_next_check()
            return "requested"
        if self.options.is_auto:
            now_s = time.monotonic()
            is_soon = now_s - self._checked_s < _AUTO_CHECKED_S
            self._check_every = min(2 * self._check_every, _AUTO_MAX_CHECK_EVERY) if is_soon else _AUTO_CHECK_EVERY
            self._checked_s = now_s
            self._next_check = self._step + self._check_every
            found = self._file_request(now_s)
            self._was_requested = found is not None
            return found or self._auto_reason()
        if self._step < self._planned_at:
            self._next_check = self._planned_at
            return None
        self._is_scheduled = True
        self._n_scheduled += 1
        return "by schedule"

    def _most_step_s(self) -> float:
        """Return how long a step of an automatic window may take; infinity if the user wants the window.

        That is a little longer than the slowest of the last steps, which may include an optimizer's step or a wait.
        """
        main = self._loop.main
        median_ns, slowest_ns = main.recent_median_ns(), main.recent_slowest_ns()
        if not self.options.is_auto or self._was_requested or median_ns is None:
            return math.inf
        usual_s = (slowest_ns or 2 * median_ns) / 1e9
        return usual_s + min(_AUTO_MOST_EXTRA_S, self._affordable_s(median_ns) / _AUTO_READING_FACTOR)

    def _why_not(self) -> str | None:
        """Return why no window can open; None if one can."""
        emit, profiler = self.options.emit, seams.user_profiler(self._loop.trainer)
        if (active := active_profiler(emit)) is not None:
            return active
        if any(cls.__name__ == "PyTorchProfiler" for cls in type(profiler).__mro__):  # it fails while a window is open
            return "the Trainer's PyTorchProfiler profiles this run"
        return why_no_nsys(self._device) if emit == "nsys" else None

    def _file_request(self, now_s: float) -> str | None:
        if now_s < self._next_request_check:
            return None
        self._next_request_check = now_s + _REQUEST_CHECK_S
        try:
            (self._folder / REQUEST_FILE).unlink()
        except OSError:
            return None
        return f"{REQUEST_FILE} was found"

    def _auto_reason(self) -> str | None:
        n_recorded = sum(window.status == "recorded" for window in self.windows)
        if len(self.windows) >= _AUTO_MAX_WINDOWS or self._step < self._next_median:
            return None
        self._next_median = self._step + min(_AUTO_MAX_MEDIAN_EVERY, max(_AUTO_CHECK_EVERY, self._step // 8))
        median_ns = self._loop.main.recent_median_ns()
        if median_ns is None or not self._can_afford(median_ns):
            return None
        if not n_recorded:
            return "steady state reached"
        before_ns = self._median_at_window_ns.level
        if self._median_at_window_ns.has_changed(median_ns) and before_ns is not None:
            return f"the median step changed from {before_ns / 1e6:.1f} to {median_ns / 1e6:.1f} ms"
        return None

    def _can_afford(self, median_step_ns: float) -> bool:
        """Return whether one more window keeps the cost of windows below their share of the run."""
        spent_s = sum(window.cost_s for window in self.windows)
        recorded = [window.cost_s for window in self.windows if window.status == "recorded"]
        first_s = _AUTO_FIRST_COST_S.get(self._device.type, _AUTO_FIRST_COST_ELSEWHERE_S)
        next_s = max(recorded) if recorded else first_s + self.options.active * median_step_ns / 1e9
        return spent_s + next_s <= self._affordable_s(median_step_ns)

    def _affordable_s(self, median_step_ns: float) -> float:
        """Return the seconds that automatic windows may cost until the run's end, or until now after the first one."""
        has_recorded = any(window.status == "recorded" for window in self.windows)
        run_s = self._loop.wall_ns() / 1e9 if has_recorded else self._loop.expected_wall_s(median_step_ns)
        return AUTO_SHARE * run_s

    def _advance(self, recording: Recording) -> None:
        try:
            if not recording.step():
                return
            window = self._read(recording)
        except Exception as error:  # noqa: BLE001 - recorded as a window that failed; the training goes on
            reason = f"{recording.reason}; {error_text(error)}"
            recording.abandon()
            window = _window(recording.first_step, 0, "failed", reason, recording.cost_s)
            self._is_requested = False
            self._next_check = self._planned_at = NEVER
        else:
            self._next_check = self._step_of_next_check()
            self._is_second_try = False
            self._median_at_window_ns.restart(self._loop.main.recent_median_ns())
        self._recording = None
        self.windows.append(window)
        self._forget_old()
        self._loop.profiling(None)

    def _forget_old(self) -> None:
        """Drop the traces of old windows, but keep their files."""
        for i, window in enumerate(self.windows[:-_MAX_TRACES]):
            if window.trace is not None:
                self.windows[i] = msgspec.structs.replace(window, trace=None)

    def _step_of_next_check(self) -> int:
        """Return the next step at which to consider a window; requested windows do not change the schedule."""
        options = self.options
        if not options.is_auto and self._is_scheduled:
            is_over = options.repeat != 0 and self._n_scheduled >= options.repeat
            self._planned_at = NEVER if is_over else self._step + (options.wait or 0)
            self._is_scheduled = False
        if self._is_requested:
            return self._step
        return self._step + _AUTO_CHECK_EVERY if options.is_auto else self._planned_at

    def _read(self, recording: Recording) -> Window:
        started = time.perf_counter()
        n_active = recording.n_active
        if self.options.emit == "nsys":
            reason = f"{recording.reason}; captured by nsys"
            return _window(recording.first_step, n_active, "recorded", reason, recording.cost_s)
        status, reason, trace, file = "recorded", recording.reason, None, None
        if n_active < self.options.active:
            reason += "; ended early: recording slowed a step down"
        try:
            n_events = recording.n_events()
            if n_events > self.options.max_events:
                status, reason = "failed", f"{reason}; {n_events} events are more than max_events allows"
            else:
                if self.options.with_stack:  # events read without a file carry no stacks
                    file = self._export(recording)
                trace = recording.trace_of_file(self._folder / file) if file else recording.trace_record()
                if self._device.type != "cpu" and trace.n_kernels == 0:
                    status, reason = "empty", f"{reason}; no device work was seen"
                is_kept = not self.options.is_auto or self._was_requested or self._is_worth_keeping(trace)
                if is_kept and file is None:
                    file = self._export(recording)
                elif not is_kept and file is not None:
                    recording.remove(self._folder / file)
                    file = None
        except Exception as error:  # noqa: BLE001 - recorded; the training goes on
            status, reason = "failed", f"{reason}; {error_text(error)}"
        if self._no_files is not None and status != "failed":
            reason = f"{reason}; {self._no_files}"
        cost_s = recording.cost_s + time.perf_counter() - started
        return _window(recording.first_step, n_active, status, reason, cost_s, file=file, trace=trace)

    def _export(self, recording: Recording) -> str | None:
        """Write the trace file and return its name; None if this one or an earlier one could not be written."""
        if self._no_files is not None:
            return None
        try:
            return recording.export(self._folder, self._rank, self.options.export_stacks)
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            self._no_files = f"no trace file was written: {error}"
            self._on_no_files(error)
            return None


def _window(first_step: int, n_steps: int, status: Any, reason: str, cost_s: float = 0.0, **content: Any) -> Window:
    return Window(first_step=first_step, n_steps=n_steps, status=status, reason=reason, cost_s=cost_s, **content)
