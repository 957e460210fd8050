"""Find the line of code that called an operator, its owner, and the loops around it."""

import dis
import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Container, Iterator
from functools import cache, lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from .function_calls import FunctionCall, Hits, Moment

USER, LIGHTNING, OTHER, TORCH, COMPILED = "user", "lightning", "other", "torch", "compiled"

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_DEMO = os.path.join(_HERE, "demo.py")  # part of this package, but counts as user code
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")
_PATHS = sysconfig.get_paths()
_PACKAGES = (_PATHS["purelib"] + os.sep, _PATHS["platlib"] + os.sep)
_STANDARD = (_PATHS["stdlib"] + os.sep, _PATHS["platstdlib"] + os.sep)
_LIGHTNING_PACKAGES = ("lightning", "pytorch_lightning", "lightning_fabric")
_MAX_KEPT = 256


def owner_of(file: str) -> str:
    """Return who owns a file. ``TORCH`` includes this package and Python's standard library: all are skipped.

    Code compiled from a text is the user's if they typed it: libraries compile methods of proxies and records, too.
    """
    if file.startswith("<"):
        if file.startswith("<eval_with_key>"):
            return COMPILED
        is_command = sys.argv[:1] == ["-c"] and file == "<string>"
        return USER if is_command or file.startswith(("<ipython", "<stdin")) else TORCH
    path = os.path.abspath(file)
    if path == _DEMO:
        return USER
    if path.startswith((_HERE + os.sep, _TORCH + os.sep)):
        return COMPILED if f"{os.sep}_inductor{os.sep}" in path else TORCH
    if f"{os.sep}torchinductor_" in path:
        return COMPILED
    if path.startswith(_lightning_folders()):
        return LIGHTNING
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts or path.startswith(_PACKAGES):
        return OTHER
    if path.startswith(_STANDARD):
        return TORCH
    return USER


_kept_owner_of, _base_name = cache(owner_of), cache(os.path.basename)


def _lightning_folders() -> tuple[str, ...]:
    modules = (sys.modules.get(name) for name in _LIGHTNING_PACKAGES)
    files = (getattr(module, "__file__", None) for module in modules)
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file)


class SourceLine(NamedTuple):
    """A line of code.

    ``owner`` is ``USER``, ``LIGHTNING`` or ``OTHER``; ``file`` is empty where no Python was running.
    """

    owner: str
    file: str
    line: int
    function: str

    def text(self) -> str:
        """Return the line itself, shortened; empty if it cannot be read."""
        return linecache.getline(self.file, self.line).strip()[:120] if self.file else ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of records that name a line: ``file``, ``line``, ``function`` and ``code``."""
        return {"file": self.file, "line": self.line, "function": self.function, "code": self.text()}


def short_place(file: str, line: Any, function: Any) -> str:
    """Return e.g. ``"model.py:31 in forward"``."""
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name}:{line} in {function}"


NOWHERE = SourceLine(OTHER, "", 0, "")


def _user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the user's frames from this one on, innermost first, up to the line that called ``fit``."""
    while frame is not None:
        owner = _kept_owner_of(frame.f_code.co_filename)
        if owner == USER:
            yield frame
        elif owner == LIGHTNING and frame.f_code.co_name == "fit":
            return
        frame = frame.f_back


def user_lines() -> tuple[tuple[str, int], ...]:
    """Return file and number of the user's lines above the caller, outermost first.

    The line that called ``fit`` does not count: everything in a training is below it.
    """
    frames = _user_frames(sys._getframe(1))
    return tuple(reversed([(frame.f_code.co_filename, frame.f_lineno) for frame in frames]))


class LinesAbove(NamedTuple):
    """``user_lines``, the instruction in each, and how many of the lines lead to each loop.

    ``frames`` are the ids of their frames, each with whether it is a generator's.
    """

    lines: tuple[tuple[str, int], ...] = ()
    instructions: tuple[int, ...] = ()
    frames: tuple[tuple[int, bool], ...] = ()
    loops: tuple[int, ...] = ()


def lines_above() -> LinesAbove:
    """Return the user's lines above the caller, with the loops that they are in, innermost first."""
    frames = list(_user_frames(sys._getframe(1)))
    loops = tuple(
        len(frames) - place
        for place, frame in enumerate(frames)
        if any(first <= frame.f_lasti <= last for first, last in _loops(frame.f_code))
    )
    frames.reverse()
    lines = tuple((frame.f_code.co_filename, frame.f_lineno) for frame in frames)
    ids = tuple((id(frame), bool(frame.f_code.co_flags & inspect.CO_GENERATOR)) for frame in frames)
    return LinesAbove(lines, tuple(frame.f_lasti for frame in frames), ids, loops)


def is_logging(monitored: Container[str] = ()) -> bool:
    """Return whether Lightning logs a value, none of ``monitored``, for the user's innermost line above the caller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (owner := _kept_owner_of(frame.f_code.co_filename)) != USER:
        if owner == LIGHTNING and frame.f_code.co_name in ("log", "log_dict"):  # Fabric's log_dict calls no log
            return frame.f_locals.get("name") not in monitored
        frame = frame.f_back
    return False


@lru_cache(maxsize=_MAX_KEPT)
def _loops(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Return the first and the last instruction of each loop: where a jump goes back to, and the jump.

    From 3.12 on, exception handlers are at the end of the code, and may jump back behind their ``with`` or ``try``.
    """
    steps = list(dis.get_instructions(code))
    handlers = len(code.co_code)
    if sys.version_info >= (3, 12):
        begins = (step.offset for step in steps if step.opname in ("PUSH_EXC_INFO", "CLEANUP_THROW"))
        handlers = next(begins, handlers)
    jumps = {*dis.hasjrel, *dis.hasjabs}
    return tuple(
        (step.argval, step.offset)
        for step in steps
        if step.opcode in jumps
        and step.argval < step.offset
        and not step.argval < handlers <= step.offset
        and "INTERRUPT" not in step.opname  # that waits
    )


def loop_lines(code: CodeType, instruction: int) -> tuple[int, int] | None:
    """Return the first and the last line of the outermost loop around an instruction; None without one."""
    around = [loop for loop in _loops(code) if loop[0] <= instruction <= loop[1]]
    if not around:
        return None
    begin, end = min(first for first, _ in around), max(last for _, last in around)
    lines = [line for first, stop, line in code.co_lines() if line is not None and first <= end and stop > begin]
    return min(lines), max(lines)


def torch_frames() -> Iterator[FrameType]:
    """Yield the frames above the caller up to the first that is not torch's, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _kept_owner_of(frame.f_code.co_filename) == TORCH:
        yield frame
        frame = frame.f_back


def is_users_call() -> bool:
    """Return whether the innermost code above the caller that is not torch's is the user's."""
    frame = _beyond_torch(sys._getframe(1))
    return frame is not None and _kept_owner_of(frame.f_code.co_filename) == USER


def instruction() -> tuple[int, int]:
    """Return the frame and the instruction above the caller that are not torch's."""
    frame = _beyond_torch(sys._getframe(1))
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


def _beyond_torch(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame from this one on that is not torch's."""
    while frame is not None and _kept_owner_of(frame.f_code.co_filename) == TORCH:
        frame = frame.f_back
    return frame


def recomputing_line() -> tuple[tuple[str, int], ...] | None:
    """Return the user's line that activation checkpointing calls above the caller; None if it does not.

    It is empty if checkpointing calls a library.
    """
    frame: FrameType | None = sys._getframe(1)
    line: tuple[tuple[str, int], ...] = ()
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _CHECKPOINT:
            return line
        if _kept_owner_of(file) == USER:
            line = ((file, frame.f_lineno),)
        frame = frame.f_back
    return None


def user_site() -> str:
    """Return the user's innermost line above the caller, e.g. ``"model.py:31"``; empty if only Lightning runs there."""
    return site_text(user_lines())


def site_text(lines: tuple[tuple[str, int], ...]) -> str:
    """Return the last of these lines, e.g. ``"model.py:31"``; empty without one."""
    return f"{os.path.basename(lines[-1][0])}:{lines[-1][1]}" if lines else ""


class StackView(NamedTuple):
    """The stack above an operator.

    Attributes:
        place: The innermost line that is not torch's.
        via: Torch's own functions between it and the operator, innermost first, as ``(file, function)``.
        hits: The hits that the operator belongs to, innermost first.
        frame: The frame of ``place``; None if there is none.
        calls: The calls of the user's functions that ``hits`` are of.
    """

    place: SourceLine
    via: tuple[tuple[str, str], ...]
    hits: tuple[Hits, ...]
    frame: FrameType | None
    calls: tuple[FunctionCall, ...] = ()


class CodeLines:
    """Walks the stack above operators, and follows calls of the user's functions during one step.

    A frame is released before the next operator that is called without it, so that its variables are freed before that
    operator allocates.
    """

    def __init__(self) -> None:
        self._running: dict[int, FunctionCall] = {}
        self._loops: list[FunctionCall] = []
        self._users: list[int] = []  # of the last operator
        self._below: dict[int, FrameType] = {}
        self.n_operators = 0

    def begin(self, frame: FrameType | None) -> None:
        """Ignore this frame and its callers until ``end``: they called the step.

        They are kept, so that no new frame has the same id.
        """
        while frame is not None:
            self._below[id(frame)] = frame
            frame = frame.f_back

    def end(self) -> None:
        """End the step and release all frames."""
        self._below.clear()
        self._release(set())
        self._users = []

    def place(self) -> SourceLine:
        """Return the innermost line above the caller that is not torch's."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = _kept_owner_of(frame.f_code.co_filename)
            if owner in (USER, LIGHTNING, OTHER):
                return _place(owner, frame)
            frame = frame.f_back
        return NOWHERE

    def inspect(self, frame: FrameType | None, operator: str, now_ns: int, own_ns: int, phase: str) -> StackView | None:
        """Inspect the stack above an operator; return None inside a compiled region, which is not entered.

        ``own_ns`` is the tracing cost so far.
        """
        self.n_operators += 1
        inner: FrameType | None = None
        owner = OTHER
        via: list[tuple[str, str]] = []
        users: list[FrameType] = []
        while frame is not None:
            if inner is not None and id(frame) in self._below:
                break
            file = frame.f_code.co_filename
            of_frame = _kept_owner_of(file)
            if of_frame == USER:
                users.append(frame)
            if inner is None:
                if of_frame == COMPILED:
                    return None
                if of_frame != TORCH:
                    inner, owner = frame, of_frame
                elif (name := _base_name(file)) not in ("eval_frame.py", "_compile.py"):  # these keep dynamo out
                    via.append((name, frame.f_code.co_name))
            frame = frame.f_back
        running = [id(user) for user in users]
        if running != self._users:
            self._release(set(running))
            self._users = running
        is_direct = owner == USER and (not via or [f for _, f in via] == ["__iter__"])
        hits = self._record_hits(users, operator, is_direct, Moment(now_ns, own_ns, self.n_operators), phase)
        place = NOWHERE if inner is None else _place(owner, inner)
        calls = tuple(self._running[each] for each in running)
        return StackView(place, tuple(via), hits, inner, calls)

    def unbound(self, stack: StackView, n: int) -> None:
        """Record that the operator unpacked a tensor into ``n`` rows."""
        call = self._running.get(id(stack.frame))
        if call is not None:
            call.n_unbound = max(call.n_unbound, n)
            call.is_iterated |= any(function == "__iter__" for _, function in stack.via)

    def loops(self) -> Iterator[FunctionCall]:
        """Yield the calls that held a loop, after the end of the step."""
        self.end()
        yield from self._loops

    def _record_hits(
        self, users: list[FrameType], operator: str, is_direct: bool, now: Moment, phase: str
    ) -> tuple[Hits, ...]:
        found = []
        child: FunctionCall | None = None
        for i, frame in enumerate(users):
            call = self._running.get(id(frame))
            if call is None:
                call = self._running[id(frame)] = FunctionCall(frame, frame.f_code)
            at = frame.f_lasti
            hits = call.hits.get(at)
            is_own = i == 0 and is_direct
            if hits is None:
                hits = call.hits[at] = Hits(frame.f_lineno or 0, operator if is_own else "", phase, now, now)
            # The innermost function hits an instruction when it calls an operator there; an outer one when
            # it makes a new call from there. Many operators below one call of torch, or of one index, are not a loop.
            if (is_own and operator == hits.operator) or (i > 0 and hits.child is not child):
                hits.n += 1
                call.is_repeating |= hits.n > 1
            hits.child = child
            hits.n_operators += 1
            found.append(hits)
            child = call
        return tuple(found)

    def _release(self, running: set[int]) -> None:
        """Release the frames of calls that are no longer running."""
        for key in [key for key in self._running if key not in running]:
            call = self._running.pop(key)
            call.frame = None
            for hits in call.hits.values():
                hits.child = None
            if call.has_loop() and len(self._loops) < _MAX_KEPT:
                self._loops.append(call)


def _place(owner: str, frame: FrameType) -> SourceLine:
    return SourceLine(owner, frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
