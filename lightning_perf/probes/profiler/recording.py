"""One profiler window: start, stop and export its recording."""

import contextlib
import errno
import gzip
import io
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch.profiler
from torch._C._profiler import _ExperimentalConfig

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import TraceRecord
from lightning_perf.records.files import SpaceCheckedFile, require_free_space, whole_file
from lightning_perf.seams import Undos
from lightning_perf.traces import analyze, analyze_trace, from_events, live_events

from .kineto_session import SessionGuard, is_profiler_started, uncounted

_TEXT_BYTES_PER_EVENT = 512  # of a trace before compression; with shapes about 350
_END_BYTES = 16  # enough for the closing bracket and white space after it
_COPY_BYTES = 2**20


class WindowOptions(NamedTuple):
    """When windows open and what they record.

    Attributes:
        wait: Steps before each window; None opens windows automatically.
        warmup: Steps recorded and discarded, to exclude the profiler's start.
        active: Steps recorded.
        repeat: Number of windows; 0 for no limit.
        skip_first: Steps before the first ``wait``.
        record_shapes: Record input shapes of operators.
        with_stack: Record Python stacks, which give costs a file and line. Large, and slows the recorded steps down.
        profile_memory: Record allocations.
        with_flops: Estimate operations.
        ranks: Ranks that record: ``"all"``, or a tuple of ranks.
        stages: Of ``fit``, ``validate``, ``test``, ``predict``.
        emit: ``"kineto"`` records here; ``"nsys"`` starts and stops the capture range of ``nsys profile
            --capture-range=cudaProfilerApi`` and marks steps and phases with NVTX.
        export_stacks: Also write stacks in the format of flame graph tools; needs ``with_stack``.
        max_events: A window with more events is neither kept nor read, to limit memory.
    """

    wait: int | None = None
    warmup: int = 2
    active: int = 3
    repeat: int = 1
    skip_first: int = 0
    record_shapes: bool = True
    with_stack: bool = False
    profile_memory: bool = False
    with_flops: bool = False
    ranks: Literal["all"] | tuple[int, ...] = (0,)
    stages: tuple[str, ...] = ("fit",)
    emit: Literal["kineto", "nsys"] = "kineto"
    export_stacks: bool = False
    max_events: int = 3_000_000

    @property
    def is_auto(self) -> bool:
        """Whether windows open by themselves."""
        return self.wait is None


class Recording:
    """One window under way.

    It ends after a recorded step that takes longer than ``most_step_s``: its events would take long to collect, and
    fill memory.
    """

    def __init__(
        self, options: WindowOptions, device: Any, first_step: int, reason: str, most_step_s: float = math.inf
    ) -> None:
        self.first_step = first_step + options.warmup
        self.reason = reason
        self.n_done = 0
        self.cost_s = 0.0
        self._most_step_s = most_step_s
        self._step_began = math.inf
        self._options = options
        self._n_steps = options.warmup + options.active
        self._events: Any = None
        self._profile: Any = None
        self._device = device
        self._undos = Undos()
        self._guard = SessionGuard(self._give_way, self._undos)
        self._is_displaced = False
        self._is_stopped = False

    def start(self) -> None:
        """Start recording. ``abandon`` stops it, also after an interrupt in here."""
        started = time.perf_counter()
        options = self._options
        if options.emit == "kineto":
            self._guard.install()
            with uncounted():
                self._profile = _kineto_profile(options, self._device)
            with self._quietly(), self._guard.own_calls():
                self._profile.start()
        elif options.warmup == 0:
            _cuda_capture(True)
        self.cost_s += time.perf_counter() - started

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Return a context in which Kineto prints nothing, unless the user has set its log level."""
        if "KINETO_LOG_LEVEL" in os.environ:
            yield
            return
        restore = partial(os.environ.pop, "KINETO_LOG_LEVEL", None)
        self._undos.note(restore)  # for an interrupt at its edges
        os.environ["KINETO_LOG_LEVEL"] = "6"
        try:
            yield
        finally:
            restore()

    def step(self) -> bool:
        """Count a finished step; return whether the window is complete."""
        if self._is_displaced:
            raise RuntimeError("another torch.profiler started inside the window")
        started = time.perf_counter()
        self.n_done += 1
        is_last = self.n_done >= self._n_steps
        is_complete = is_last or started - self._step_began > self._most_step_s
        if self._profile is not None and is_complete == is_last:
            with self._quietly(), self._guard.own_calls(), uncounted():
                self._profile.step()
        elif self.n_done == self._options.warmup:
            _cuda_capture(True)
        if is_complete:
            self._stop()
        ended = time.perf_counter()
        if self.n_done >= self._options.warmup:
            self._step_began = ended
        self.cost_s += ended - started
        return is_complete

    def abandon(self) -> None:
        """Stop without reading: events must not be read before a window is complete."""
        self._undos.close()
        try:
            self._stop()
        except Exception as error:  # noqa: BLE001 - the window is recorded as incomplete anyway
            raise_if_from_signal(error)
            self.reason = f"{self.reason}; stopping: {error}"

    def _give_way(self) -> None:
        self._is_displaced = True
        self.abandon()

    def _stop(self) -> None:
        if self._is_stopped:
            return
        if self._options.emit != "kineto":
            _cuda_capture(False)
        elif self._profile is not None:
            with self._quietly(), self._guard.own_calls():
                if not self._guard.has_prepared and self._profile.profiler is not None:
                    # Torch ends a warm-up by recording for a moment, which crashes the process where an interrupt kept
                    # Kineto from being prepared. Preparing it twice is harmless.
                    self._profile.profiler._prepare_trace()
                self._profile.stop()
        self._is_stopped = True
        self._undos.close()

    def n_events(self) -> int:
        """Get the recorded events from Kineto; return their number. Call it before the events are read or exported."""
        self._events = self._profile.profiler.kineto_results.events()
        return len(self._events)

    def trace_record(self) -> TraceRecord:
        """Read the events in memory."""
        return analyze_trace(from_events(live_events(self._events)))

    @staticmethod
    def trace_of_file(file: Path) -> TraceRecord:
        """Read the exported trace, which includes Python stacks."""
        return msgspec.structs.replace(analyze(file), source="live")

    @staticmethod
    def remove(file: Path) -> None:
        """Delete the files that ``export`` wrote."""
        file.unlink(missing_ok=True)
        stem = file.name.removesuffix(".pt.trace.json.gz")
        file.with_name(f"{stem}.stacks.txt").unlink(missing_ok=True)

    @property
    def n_active(self) -> int:
        """Number of finished steps that were recorded."""
        return max(0, self.n_done - self._options.warmup)

    @property
    def is_in_last_step(self) -> bool:
        """Whether the window is complete once the step under way is over."""
        return self.n_done == self._n_steps - 1

    def export(self, folder: Path, rank: int, with_stacks: bool) -> str:
        """Write the trace under the name that TensorBoard's profiler tabs expect; return the name.

        Raises:
            OSError: The disk of the folder or of temporary files is full; nothing is left behind.
        """
        stem = f"{socket.gethostname()}_{os.getpid()}_rank{rank}.{time.time_ns()}"
        name = f"{stem}.pt.trace.json.gz"
        require_free_space(folder, 0)
        # Kineto does not report a failed write: it writes a temporary file, which is checked and then compressed.
        with tempfile.TemporaryDirectory(prefix="lightning-perf-") as scratch, self._quietly():
            require_free_space(scratch, len(self._events) * _TEXT_BYTES_PER_EVENT)
            plain = Path(scratch) / "trace.json"
            self._profile.export_chrome_trace(str(plain))
            _require_end(plain)
            _pack(plain, folder / name)
            if with_stacks:
                stacks = Path(scratch) / "stacks.txt"
                self._profile.export_stacks(str(stacks))
                _copy(stacks, folder / f"{stem}.stacks.txt")
        return name


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[io.FileIO]:
    """Open a file for reading; close it even if an interrupt comes before the block is entered."""
    file = io.FileIO.__new__(io.FileIO)  # ``open`` would lose the file if a signal handler raised as it returns
    try:
        io.FileIO.__init__(file, path)
        yield file
    finally:
        file.close()


def _require_end(plain: Path) -> None:
    with _reading(plain) as file:
        file.seek(max(0, plain.stat().st_size - _END_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(errno.EIO, "the profiler wrote only a part of the trace", str(plain))


def _pack(source: Path, target: Path) -> None:
    with (
        _reading(source) as plain,
        whole_file(target) as file,
        gzip.GzipFile(fileobj=SpaceCheckedFile(file, target.parent), mode="wb", filename="") as packed,
    ):
        shutil.copyfileobj(plain, packed, _COPY_BYTES)


def _copy(source: Path, target: Path) -> None:
    with _reading(source) as plain, whole_file(target) as file:
        shutil.copyfileobj(plain, SpaceCheckedFile(file, target.parent), _COPY_BYTES)


def _kineto_profile(options: WindowOptions, device: Any) -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    elif device.type == "xpu":
        activities.append(torch.profiler.ProfilerActivity.XPU)
    return torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=options.warmup, active=options.active, repeat=1),
        record_shapes=options.record_shapes,
        with_stack=options.with_stack,
        profile_memory=options.profile_memory,
        with_flops=options.with_flops,
        # Without it, newer versions of torch keep no stacks of operators and export an empty file.
        experimental_config=_ExperimentalConfig(verbose=options.export_stacks),
    )


def _cuda_capture(is_on: bool) -> None:
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if is_on:
        runtime.cudaProfilerStart()
    else:
        runtime.cudaProfilerStop()


def why_no_nsys(device: Any) -> str | None:
    """Return why a window cannot be captured by nsys on this ``torch.device``; None if it can."""
    if device.type != "cuda":
        return f"emit='nsys' needs a CUDA device, this run is on {device.type}; use emit='kineto'"
    try:
        torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.nvtx.mark("perfdoctor:window")  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError, AttributeError) as error:
        raise_if_from_signal(error)
        return f"emit='nsys' needs CUDA's runtime and NVTX: {error}; use emit='kineto'"
    return None


def active_profiler(emit: str = "kineto") -> str | None:
    """Return which other profiler is active, so that no window can open; None if there is none."""
    if is_profiler_started():
        return "another torch.profiler is active in this process"
    if emit != "nsys" and os.environ.get("NSYS_PROFILING_SESSION_ID"):
        return "nsys profiles this process; schedule windows for it with emit='nsys'"
    return None


def annotation_for(emit: str) -> Callable[[str], Any]:
    """Return a function from a phase name to a context manager that marks it in the trace."""
    if emit == "nsys":
        return lambda phase: torch.cuda.nvtx.range(f"perfdoctor:{phase}")
    return lambda phase: torch.profiler.record_function(f"perfdoctor:{phase}")
