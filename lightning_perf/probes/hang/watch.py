"""Watch from a background thread whether the training makes progress, and report each hang once.

The thread reads counters of the training thread a few times per minute. It never ends or interrupts anything. Each
interval between two readings counts only up to a limit, so that a stopped process or a suspended machine is no hang.
"""

import contextlib
import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from lightning_perf.probes.background import BackgroundThread
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.host_lines.calls import OwnCode, library_call, line_of, shown_file
from lightning_perf.probes.host_lines.stacks import Frame, StackReader, frames_of, why_no_stacks
from lightning_perf.probes.telemetry.processes import read_bytes
from lightning_perf.probes.timeline.spans import OWN
from lightning_perf.records import Hang, RankState
from lightning_perf.records.files import read_regular, require_free_space

from .workers import Workers

MEDIAN_FACTOR = 20
"""A step may take this many times the median step."""

SLOW_FACTOR = 5
"""The first steps may take this many times as long, since workers start; so may sampled and profiled steps, and all
that is not training, where metrics are computed over all batches at the end."""

_POLLS = 12  # per ``hang_after_s``
_HEARTBEAT_POLLS = 6
_WORKER_PHASES = ("data_wait", "epoch_boundary", "startup")
_OURS = "lightning-perf"
_TRIES, _RETRY_S = 5, 0.02  # of a rank's file, which may be read while it is written

_BUSY = {
    "a debugger": (
        "pdb.", "bdb.", "ipdb.", "pudb.", "code.interact", "IPython.core.debugger.", "IPython.terminal.debugger.",
        "IPython.terminal.embed.",
    ),
    "compiling": (
        "torch._dynamo.convert_frame.", "torch._inductor.compile_fx.", "torch.utils.cpp_extension.", "triton.compiler.",
    ),
    "saving": ("torch.serialization.", "torch.distributed.checkpoint.", "safetensors."),
}  # fmt: skip
"""Prefixes of ``module.function`` on the stack of any thread: backward compiles in a thread of autograd's."""

_IDE_DEBUGGERS = ("pydevd", "_pydevd", "debugpy")
"""Prefixes on the training thread's stack only: these debuggers have threads of their own, which always wait."""

_PROMPTS = ("getpass.", "ipykernel.kernelbase._input_request")


class RankFiles:
    """The states of the ranks, one small file each in the run's folder: a collective would hang as well."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder / "hang_watch"  # a separate folder, because the last rank removes it
        self._paths = [self._folder / f"rank{each}.json" for each in range(world_size)]
        self._rank, self._own = rank, self._paths[rank]

    def write(self, n_steps: int, phase: str, busy: str = "", where: str = "") -> None:
        """Overwrite this rank's file. This is not atomic: a rename each time would load a shared disk."""
        state = RankState(rank=self._rank, n_steps=n_steps, phase=phase, busy=busy, where=where)
        with contextlib.suppress(OSError):
            require_free_space(self._folder, 0)
            self._folder.mkdir(parents=True, exist_ok=True)
            self._own.write_bytes(msgspec.json.encode(state))

    def read(self) -> tuple[RankState, ...]:
        """Return the states of all ranks that have written one."""
        return tuple(state for state in map(self._state, self._paths) if state is not None)

    def _state(self, path: Path) -> RankState | None:
        for _ in range(_TRIES):
            try:
                state = msgspec.json.decode(read_regular(path), type=RankState)
                return msgspec.structs.replace(state, age_s=max(0.0, time.time() - os.stat(path).st_mtime))
            except OSError:
                return None
            except msgspec.DecodeError:  # read while it was written
                time.sleep(_RETRY_S)
        return None

    def remove(self) -> None:
        """Remove this rank's file, and the folder if nothing is left in it."""
        with contextlib.suppress(OSError):
            os.unlink(self._own)
            os.rmdir(self._folder)


class HangWatch(Probe):
    """Detection of the hangs of one run; created and started in the training thread.

    Ranks exchange their states by ``files``; None with one rank. ``now_s`` and ``frames`` are replaced in tests.

    Attributes:
        loops: The user's functions that loop over steps without a Trainer.
    """

    name = field = "hangs"
    after = ("steps",)

    def __init__(
        self,
        run: RunContext,
        hang_after_s: float,
        files: RankFiles | None = None,
        now_s: Callable[[], float] = time.monotonic,
        frames: Callable[[], dict[int, FrameType]] = sys._current_frames,
    ) -> None:
        self.hangs: list[Hang] = []
        self.poll_s = hang_after_s / _POLLS
        self._loop, self._hang_after_s, self._show = run.loop, hang_after_s, run.show_hang
        self._files, self._now_s, self._frames = files, now_s, frames
        self._watched = threading.get_ident()
        self._schedule = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._reader = StackReader()
        self.loops = self._reader.loops
        self._workers = Workers()
        self._background = BackgroundThread(f"{_OURS} hang watch", self.poll)
        self._last_s = now_s()
        self._seen: tuple[int, int, int] | None = None
        self._longest_s = 0.0
        self._n_polls = 0
        self._begin_pause()

    def _begin_pause(self) -> None:
        """Reset the measurement of the time without progress."""
        self._quiet_s, self._is_reported, self._where = 0.0, False, ""
        self._cpu_time_before: tuple[float, float] | None = None  # the clock, and the training thread's CPU time

    @classmethod
    def open(cls, run: RunContext) -> "HangWatch | None":
        after_s, trainer, folder = run.options.hang_after_s, run.trainer, run.shared_folder
        reason = why_no_stacks() if after_s else f"hang_after_s={after_s}"
        if reason or not after_s:
            run.missing["hangs"] = reason
            return None
        files = None
        if trainer.world_size > 1 and folder is not None:
            files = RankFiles(folder, trainer.global_rank, trainer.world_size)
        return cls(run, after_s, files)

    def start(self) -> None:
        self._workers.open()
        self._background.start(self.poll_s)

    def run_ends(self, error: BaseException | None) -> None:
        """Stop watching. The last hang gets a duration, unless it lasted until an error ended the run."""
        self._background.close()
        last = self.hangs[-1] if self.hangs else None
        if last is None:
            return
        if error is not None and last.n_steps == self._loop.main.n_steps:
            quiet_s = max(last.quiet_s, last.lasted_s or self._quiet_s)
            self.hangs[-1] = msgspec.structs.replace(last, lasted_s=None, quiet_s=quiet_s)
        elif self._is_reported:  # it ended after the last poll
            self.hangs[-1] = msgspec.structs.replace(last, lasted_s=max(last.quiet_s, self._quiet_s))

    def close(self) -> None:
        self._background.close()
        self._workers.close()
        if self._files is not None:
            self._files.remove()

    def record(self) -> tuple[Hang, ...]:
        return tuple(self.hangs)

    def poll(self) -> None:
        """Read the counters; report a hang once there was no progress for too long."""
        now_s, loop, phase = self._now_s(), self._loop, self._loop.current_phase()
        passed_s, self._last_s = min(now_s - self._last_s, 2 * self.poll_s), now_s
        seen = (loop.main.n_steps, loop.validation.n_steps, loop.timeline.last_ns)
        is_between = phase == "epoch_boundary" and bool(self.loops)  # code of the user's that updates no counter
        is_evaluating = phase == "validation" or loop.stage != "fit"
        # Ranks that wait for one in evaluation must not report it.
        is_expected = phase == "checkpoint" or (is_evaluating and self._files is not None)
        is_expected = is_expected or loop.timeline.current.phase == OWN or is_between
        busy = phase if is_expected else ""
        if seen != self._seen or busy:
            self._note_progress()
        else:
            self._quiet_s += passed_s
        self._seen = seen
        own: list[Frame] = []
        others: dict[str, list[Frame]] = {}
        if self._quiet_s >= self._hang_after_s / 2 and not self._is_reported:
            own, others = self._stacks()
            if self._reader.read(own) is None:
                if self.loops:
                    self._note_progress()  # the user's code has left its loop, e.g. at the end of a notebook's cell
                else:
                    self._background.stopping.set()  # the run ended without a call to stop
                return
            busy = busy_reason(own, others)
            if busy:
                self._quiet_s = self._hang_after_s / 2
            self._cpu_time_before = self._cpu_time_before or self._cpu_time_now()
            self._where = self._line(own)[0]
        if self._files is not None and (own or self._n_polls % _HEARTBEAT_POLLS == 0):
            self._files.write(seen[0], phase, busy, self._where)
        self._n_polls += 1
        if own and not busy and self._quiet_s >= (limit_s := self._limit_s()):
            self._report(limit_s, phase, own, others)

    def _note_progress(self) -> None:
        if self._loop.main.recent_median_ns() is not None:  # pauses during the start are not typical
            self._longest_s = max(self._longest_s, self._quiet_s)
        if self._is_reported:
            self.hangs[-1] = msgspec.structs.replace(self.hangs[-1], lasted_s=self._quiet_s)
        self._begin_pause()

    def _limit_s(self) -> float:
        """Return the seconds without progress that count as a hang; at least twice the longest pause so far."""
        loop, median_ns = self._loop, self._loop.main.recent_median_ns()
        limit_s = max(self._hang_after_s, MEDIAN_FACTOR * (median_ns or 0.0) / 1e9, 2 * self._longest_s)
        is_slow = median_ns is None or loop.timeline.phase_listener is not None or loop.is_profiling
        is_slow = is_slow or loop.stage != "fit" or loop.current_phase() == "validation"
        return SLOW_FACTOR * limit_s if is_slow else limit_s

    def _report(self, limit_s: float, phase: str, own: list[Frame], others: Mapping[str, Sequence[Frame]]) -> None:
        ranks = self._files.read() if self._files is not None else ()
        if any(rank.busy and rank.age_s < self._hang_after_s for rank in ranks):
            return  # this rank waits for a rank that is busy
        self._is_reported = True
        where, code, call = self._line(own)
        workers, worker_stacks = self._workers.states(with_stacks=phase in _WORKER_PHASES)
        median_ns = self._loop.main.recent_median_ns()
        hang = Hang(
            n_steps=self._loop.main.n_steps,
            phase=phase,
            quiet_s=self._quiet_s,
            limit_s=limit_s,
            median_step_s=None if median_ns is None else median_ns / 1e9,
            where=where or next((worker.where for worker in workers if worker.where), ""),
            code=code,
            call=call,
            cpu_fraction=self._cpu_fraction(),
            workers=workers,
            ranks=ranks,
        )
        is_new = (phase, hang.where) not in {(one.phase, one.where) for one in self.hangs}
        self.hangs.append(hang)
        if is_new:
            texts = [_stack_text(*each) for each in (("training thread", own), *others.items())]
            self.hangs[-1] = self._show(hang, "\n".join([*texts, worker_stacks]))

    def _stacks(self) -> tuple[list[Frame], dict[str, list[Frame]]]:
        """Return the frames of the training thread, and those of other threads except PerfDoctor's, by name."""
        others = {f"{one.name} ({one.ident})": one.ident for one in threading.enumerate() if one.ident != self._watched}
        read = {name: frames_of(ident or 0, self._frames) for name, ident in others.items() if _OURS not in name}
        return frames_of(self._watched, self._frames), read

    def _line(self, own: Sequence[Frame]) -> tuple[str, str, str]:
        """Return the user's innermost line, its text, and the function it calls; without a line, only the function."""
        stack = self._reader.read(own)
        if stack is None or not stack.lines:
            return "", "", library_call(own[0][0], str(own[0][2].get("__name__", "")))
        code, offset, line = stack.lines[-1]
        text = linecache.getline(code.co_filename, line).strip()[:120]
        call = OwnCode(code, offset, line, self._reader.globals_of.get(code, {})).call
        return f"{shown_file(code.co_filename)}:{line} in {code.co_name}", text, call

    def _cpu_time_now(self) -> tuple[float, float] | None:
        fields = read_bytes(self._schedule).split()
        return (self._now_s(), int(fields[0]) / 1e9) if fields else None

    def _cpu_fraction(self) -> float | None:
        before, now = self._cpu_time_before, self._cpu_time_now()
        if before is None or now is None or now[0] <= before[0]:
            return None
        return min(1.0, max(0.0, (now[1] - before[1]) / (now[0] - before[0])))


def _stack_text(name: str, frames: Sequence[Frame]) -> str:
    """Return a stack as text, innermost first."""
    entries = [(code.co_filename, line_of(code, offset), code.co_name, None) for code, offset, _ in frames]
    return "".join([f"Thread {name}\n", *traceback.format_list(entries)])


def busy_reason(own: Sequence[Frame], others: Mapping[str, Sequence[Frame]]) -> str:
    """Return why a training thread without progress does not hang; empty if it may hang.

    ``own`` are its frames, innermost first, ``others`` those of all other threads.
    """
    called = _function_names(own)
    if any(name.startswith(_IDE_DEBUGGERS) for name in called):
        return "a debugger"
    if any(name.startswith(_PROMPTS) for name in called) or _asks_for_input(own):
        return "waiting for input"
    for frames in others.values():
        called += _function_names(frames)
    return next((reason for reason, known in _BUSY.items() if any(name.startswith(known) for name in called)), "")


def _function_names(frames: Sequence[Frame]) -> list[str]:
    return [f"{names.get('__name__', '')}.{code.co_name}" for code, _, names in frames]


def _asks_for_input(own: Sequence[Frame]) -> bool:
    code, offset, names = own[0]
    call = OwnCode(code, offset, line_of(code, offset), names).call
    return call.rpartition(".")[2] == "input" or "stdin" in call
