"""Sample the lines of the user's code in which batches are made, in the probe's child and in its workers.

This uses pyinstrument's profile function, which runs in the thread that makes the batches: a sampling thread would
wait for the interpreter lock, and attribute short calls to the next call that releases it. A profile function runs only
at calls and returns, so operators between them are attributed to the line of the next one: the lines of the costliest
function are timed with a trace function, too.
"""

import contextlib
import itertools
import linecache
import multiprocessing.util
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from lightning_perf.probes.host_lines.calls import path_in_package
from lightning_perf.probes.host_lines.profile import COMPREHENSIONS, Line, UserLine
from lightning_perf.probes.sampled_steps.code_lines import OTHER, USER, owner_of
from lightning_perf.records import HostLine
from lightning_perf.records.loader_probe import HotFunction, HotLine

from .line_timer import LineTimer

Where = Literal["getitem", "collate"]

MIN_SHARE = 0.02
"""Functions and lines with a smaller share are left out."""
BASIS = "stack samples"
_INTERVAL_S = 0.001
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_MAX_FUNCTIONS, _MAX_LINES = 12, 8
_NATIVE_LINE_S = 5e-6
"""Own time per line above which a function counts as running C code: operators on arrays or tensors. A line of Python
with names and small numbers takes 0.02–0.2 us on machines of the last ten years."""


class _Function(NamedTuple):
    """A function: name with its class, file and first line."""

    name: str
    file: str
    line: int


class _Frame(NamedTuple):
    """A function and its current line; the file is empty for a function in C."""

    function: _Function
    line: int


class _Sample(NamedTuple):
    """One stack: the frames that count as the user's, outermost first, and the frame that the innermost called."""

    frames: tuple[_Frame, ...]
    called: _Frame | None
    seconds: float


class BatchLines:
    """Stack samples of the thread that makes batches.

    Installed packages count as the user's code if no line of the user's was seen.
    """

    def __init__(self) -> None:
        self._stacks: list[tuple[tuple[_Frame, ...], float]] = []
        self._profiler: Any = None
        self._timer: LineTimer | None = None

    def start(self) -> None:
        from pyinstrument import Profiler  # not needed by a training that is not probed

        self._profiler = Profiler(interval=_INTERVAL_S, async_mode="disabled")
        self._profiler.start()

    def stop(self) -> None:
        """Stop sampling, and keep the frames below the probe's own code."""
        for infos, seconds in self._profiler.stop().frame_records:
            frames = [_frame(info) for info in infos]
            ours = [index for index, frame in enumerate(frames) if frame.function.file.startswith(_OURS)]
            self._stacks.append((tuple(frames[max(ours, default=-1) + 1 :]), seconds))

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()

    def time_lines(self, work: Callable[[], Any]) -> float:
        """Time the lines of the user's costliest function in some calls of ``work``; return the lines per call."""
        first = next(iter(self.functions("getitem")), None)
        if first is None or not first.is_users:
            return 0.0
        self._timer = LineTimer(first)
        self._timer.run(work)
        return self._timer.n_lines / self._timer.n_calls

    def functions(self, where: Where) -> tuple[HotFunction, ...]:
        """Return the functions that take the time, costliest first."""
        samples, total_s = self._samples()
        total, blamed, called = (defaultdict[_Function, float](float) for _ in range(3))
        for sample in samples:
            for function in {frame.function for frame in sample.frames}:
                total[function] += sample.seconds
            innermost = sample.frames[-1].function
            blamed[innermost] += sample.seconds
            if sample.called is not None:
                called[innermost] += sample.seconds
        ranked = sorted(total, key=lambda function: (-blamed[function], -total[function]))
        return tuple(
            HotFunction(
                name=function.name,
                file=function.file,
                line=function.line,
                share=total[function] / total_s,
                own_share=(blamed[function] - called[function]) / total_s,
                blamed_share=blamed[function] / total_s,
                where=where,
                kind="native" if called[function] > 0.5 * blamed[function] > 0 else "python",
                basis=BASIS,
                is_users=owner_of(function.file) == USER,
            )
            for function in ranked
            if total[function] >= MIN_SHARE * total_s
        )[:_MAX_FUNCTIONS]

    def lines(self) -> tuple[HostLine, ...]:
        """Return the costliest lines, costliest first."""
        found, total_s = self._lines()
        costly = [line for lines in found.values() for line in lines.values() if line.ns >= MIN_SHARE * total_s]
        return tuple(line.record(total_s) for line in sorted(costly, key=lambda line: -line.ns)[:_MAX_LINES])

    def hot_lines(self) -> tuple[HotLine, ...]:
        """Return the lines of the costliest function, with their shares of its time."""
        first = next(iter(self.functions("getitem")), None)
        lines = self._lines()[0].get((first.file, first.line), {}) if first is not None else {}
        whole_s = sum(line.ns for line in lines.values())
        return tuple(
            HotLine(
                file=place.file,
                line=place.line,
                text=linecache.getline(place.file, place.line).strip()[:200],
                share=line.ns / whole_s,
                basis=BASIS,
            )
            for place, line in sorted(lines.items(), key=lambda item: -item[1].ns)[:_MAX_LINES]
        )

    def _lines(self) -> tuple[dict[tuple[str, int], dict[UserLine, Line]], float]:
        """Return the innermost lines by the file and first line of their function, and the seconds of all stacks."""
        samples, total_s = self._samples()
        found: defaultdict[tuple[str, int], dict[UserLine, Line]] = defaultdict(dict)
        for sample in samples:
            function, number = sample.frames[-1]
            place = UserLine(function.file, number, _without_class(function))
            line = Line(place, _without_class(sample.frames[0].function))
            line = found[function.file, function.line].setdefault(place, line)
            line.add(sample.seconds, 1, _called_name(sample))
        if self._timer is not None and (timed := found.get(self._timer.function)):
            self._timer.redistribute(timed)
        return found, total_s

    def _samples(self) -> tuple[list[_Sample], float]:
        """Return the stacks with the user's code, or else those with packages, and the seconds of all stacks."""
        total_s = sum(seconds for _, seconds in self._stacks)
        for owners in ((USER,), (USER, OTHER)):
            found = [sample for stack in self._stacks if (sample := _sample(*stack, owners)) is not None]
            if found:
                return found, total_s
        return [], total_s


def with_operators(functions: tuple[HotFunction, ...], n_lines: float, call_s: float) -> tuple[HotFunction, ...]:
    """Return the functions, with the first one marked ``"native"`` if its lines take too long for Python code alone.

    Such lines run operators on arrays or tensors. A call of the dataset takes ``call_s`` seconds, and runs ``n_lines``
    lines of the first function.
    """
    if not functions or functions[0].kind == "native" or not n_lines:
        return functions
    first = functions[0]
    if first.own_share * call_s / n_lines <= _NATIVE_LINE_S:
        return functions
    return (msgspec.structs.replace(first, kind="native"), *functions[1:])


class WorkerLines:
    """``worker_init_fn`` that samples the worker's lines into a file in ``folder``, written as the worker ends."""

    def __init__(self, inner: Callable[[int], Any] | None, folder: Path) -> None:
        self.inner = inner
        self.folder = folder

    def __call__(self, worker_id: int) -> None:
        if self.inner is not None:
            self.inner(worker_id)
        lines = BatchLines()
        lines.start()
        multiprocessing.util.Finalize(None, self._write, (lines, os.getpid()), exitpriority=100)

    def _write(self, lines: BatchLines, pid: int) -> None:
        lines.stop()
        (self.folder / f"lines-{pid}").write_bytes(msgspec.json.encode(lines.lines()))


def read_worker_lines(folder: Path) -> tuple[HostLine, ...]:
    """Return the lines of all workers, with their mean shares, costliest first."""
    found: dict[tuple[str, int], HostLine] = {}
    workers: list[tuple[HostLine, ...]] = []
    for path in folder.glob("lines-*"):
        with contextlib.suppress(msgspec.DecodeError):  # its worker was killed while it wrote
            workers.append(msgspec.json.decode(path.read_bytes(), type=tuple[HostLine, ...]))
    for line in itertools.chain.from_iterable(workers):
        key = line.file, line.line
        known = found.get(key, msgspec.structs.replace(line, share=0.0, n_samples=0))
        found[key] = msgspec.structs.replace(
            known, share=known.share + line.share / len(workers), n_samples=known.n_samples + line.n_samples
        )
    return tuple(sorted(found.values(), key=lambda line: -line.share))[:_MAX_LINES]


def _frame(info: str) -> _Frame:
    """Return a frame from pyinstrument's text: name, file and first line, followed by attributes."""
    identifier, *attributes = info.split("\x01")
    name, file, line = identifier.split("\x00")
    if file == "<built-in>":
        return _Frame(_Function(name, "", 0), 0)
    owner = next((each[1:] for each in attributes if each[:1] == "c"), "")
    now = next((int(each[1:]) for each in attributes if each[:1] == "l"), 0)
    return _Frame(_Function(f"{owner}.{name}" if owner else name, file, int(line)), now)


def _sample(stack: tuple[_Frame, ...], seconds: float, owners: tuple[str, ...]) -> _Sample | None:
    """Return the frames of some owners in a stack, and what they call; None without such frames.

    A comprehension counts as part of the function around it.
    """
    frames: list[_Frame] = []
    called: _Frame | None = None
    for frame in stack:
        if not frame.function.file or owner_of(frame.function.file) not in owners:
            called = called or frame
        elif frame.function.name in COMPREHENSIONS and frames:
            frames[-1], called = _Frame(frames[-1].function, frame.line), None
        else:
            frames.append(frame)
            called = None
    return _Sample(tuple(frames), called, seconds) if frames else None


def _without_class(function: _Function) -> str:
    return function.name.rpartition(".")[2]


def _called_name(sample: _Sample) -> str:
    """Return the function that the innermost line called, as code names it, e.g. ``"json.loads"``; empty for none."""
    if sample.called is None:
        return ""
    function, line = sample.frames[-1]
    name = sample.called.function.name
    text = linecache.getline(function.file, line)
    written = re.search(rf"([\w.]*\b{re.escape(name.rpartition('.')[2])})\s*\(", text)
    if written is not None:
        return written[1].removeprefix("self.").lstrip(".")
    file = sample.called.function.file
    # Not that of a function in C, or of a frozen module.
    return f"{path_in_package(file)[0].removesuffix('.py')}.{name}" if os.path.isabs(file) else name
