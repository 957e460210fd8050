"""Two profiles of the same calls: an exact one that slows Python down, and a sampled one that hardly does."""

from __future__ import annotations

import cProfile
import functools
import importlib.util
import os
import site
import sysconfig
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

MIN_SAMPLES = 100
"""Fewer samples tell shares no better than to ±10 % (binomial, two standard errors at a share of one half)."""
_INTERVAL_S = 0.001
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions to Python (some only before 3.12), parts of the function that they stand in to whoever wrote it."""


class Place(NamedTuple):
    """A function: name, source file (empty for one in C) and first line."""

    name: str
    file: str
    line: int


class Weight:
    """Seconds of one function.

    Attributes:
        total_s: In it and in what it calls.
        own_s: In it alone.
        blamed_s: While it was the innermost function of the user's; where there was none, the innermost Python one.
        native_s: Of ``blamed_s``, in C functions called from it or on its behalf.
        calls: How often it was called; None where samples were taken.
        lines: Of ``blamed_s``, by line of its file; empty where lines are not seen.
        label: Its name with its class, where known.
    """

    __slots__ = ("blamed_s", "calls", "label", "lines", "native_s", "own_s", "total_s")

    def __init__(self) -> None:
        self.total_s = self.own_s = self.blamed_s = self.native_s = 0.0
        self.calls: int | None = None
        self.lines: Counter[int] = Counter()
        self.label = ""


class Profile(NamedTuple):
    """What a profiler saw.

    Attributes:
        basis: ``"cProfile"`` or ``"pyinstrument"``.
        seconds: All time seen.
        n_calls: Calls of the work that were profiled.
        weights: By function.
        codes: The code objects by function, where the profiler gives them.
    """

    basis: str
    seconds: float
    n_calls: int
    weights: dict[Place, Weight]
    codes: dict[Place, CodeType]


def has_sampler() -> bool:
    """Whether pyinstrument is installed."""
    return importlib.util.find_spec("pyinstrument") is not None


def profile_exactly(work: Callable[[], Any], until_s: float, max_calls: int) -> Profile:
    """Calls ``work`` under cProfile until a time of ``time.perf_counter`` or a number of calls is reached.

    C functions called by name are seen as functions of their own; operators on arrays are not: their time counts as
    that of the Python function they stand in.
    """
    profiler = cProfile.Profile()
    n_calls = 0
    while n_calls == 0 or (n_calls < max_calls and time.perf_counter() < until_s):
        profiler.enable(subcalls=True, builtins=True)
        try:
            _call(work)
        finally:
            profiler.disable()
        n_calls += 1
    entries = {entry.code: entry for entry in profiler.getstats() if not _is_profilers(entry.code)}
    weights: dict[Place, Weight] = defaultdict(Weight)
    codes: dict[Place, CodeType] = {}
    blame = _Blame(entries)
    ours = [entry for code, entry in entries.items() if _is_ours(code)]
    edges = [edge for entry in ours for edge in entry.calls or () if edge.code in entries and not _is_ours(edge.code)]
    seconds = float(sum(edge.totaltime for edge in edges))
    for code, entry in entries.items():
        if _is_ours(code):
            continue
        place = _place(code)
        weight = weights[place]
        weight.total_s += entry.totaltime
        weight.own_s += entry.inlinetime
        weight.calls = (weight.calls or 0) + entry.callcount
        weight.blamed_s += blame.blamed(code)
        weight.native_s += blame.native(code)
        weight.label = getattr(code, "co_qualname", place.name) if isinstance(code, CodeType) else place.name
        if isinstance(code, CodeType):
            codes[place] = code
    return Profile("cProfile", seconds, n_calls, dict(weights), codes)


def profile_sampled(work: Callable[[], Any], until_s: float) -> Profile:
    """Calls ``work`` under pyinstrument until a time of ``time.perf_counter`` is reached; at least once."""
    from pyinstrument import Profiler

    profiler = Profiler(interval=_INTERVAL_S, async_mode="disabled")
    n_calls = 0
    profiler.start()
    try:
        while n_calls == 0 or time.perf_counter() < until_s:
            work()
            n_calls += 1
    finally:
        session = profiler.stop()
    weights: dict[Place, Weight] = defaultdict(Weight)
    seconds = 0.0
    for infos, sample_s in session.frame_records:
        frames = [_frame(info) for info in infos]
        ours = max((index for index, (place, *_) in enumerate(frames) if _is_our_file(place.file)), default=-1)
        stack = frames[ours + 1 :]
        if stack:
            seconds += sample_s
            _add_stack(weights, stack, sample_s)
    return Profile("pyinstrument", seconds, n_calls, dict(weights), {})


def _call(work: Callable[[], Any]) -> None:
    """A frame of ours, from which the work's own begin."""
    work()


def is_users(file: str) -> bool:
    """Whether a source file is the user's rather than the standard library's or an installed package's."""
    if not file or file.startswith("<"):
        # A notebook's cells have made-up names; frozen modules of the library do too.
        return file.startswith("<ipython")
    return not _real(file).startswith(_installed()) and not _is_our_file(file)


@functools.cache
def _installed() -> tuple[str, ...]:
    folders = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()} if hasattr(site, "getsitepackages") else set()
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


@functools.cache
def _real(file: str) -> str:
    return os.path.realpath(file)


_OUR_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _is_our_file(file: str) -> bool:
    return file.startswith(_OUR_FOLDER)


# -- sampled stacks ---------------------------------------------------------------------------------------------------


def _frame(info: str) -> tuple[Place, int, str]:
    """Function, current line and class name of a frame as pyinstrument writes it down."""
    identifier, *attributes = info.split("\x01")
    name, file, line = identifier.split("\x00")
    now = next((int(each[1:]) for each in attributes if each[:1] == "l"), 0)
    owner = next((each[1:] for each in attributes if each[:1] == "c"), "")
    if file == "<built-in>":
        return Place(name, "", 0), 0, ""
    return Place(name, file, int(line)), now, f"{owner}.{name}" if owner else name


def _add_stack(weights: dict[Place, Weight], stack: list[tuple[Place, int, str]], seconds: float) -> None:
    for place, label in {place: label for place, _, label in stack}.items():
        weights[place].total_s += seconds
        weights[place].label = weights[place].label or label
    leaf = stack[-1][0]
    weights[leaf].own_s += seconds
    pythons = [frame for frame in stack if frame[0].file and frame[0].name not in _COMPREHENSIONS]
    pythons = [frame for frame in pythons if is_users(frame[0].file)] or pythons
    if pythons:
        place, line, _ = pythons[-1]
        weight = weights[place]
        weight.blamed_s += seconds
        weight.lines[line] += seconds  # type: ignore[assignment]
        if not leaf.file:
            weight.native_s += seconds


# -- exact call edges -------------------------------------------------------------------------------------------------


class _Blame:
    """Divides cProfile's times among the user's functions, along the edges from caller to callee.

    An edge knows how long the callee took for this caller, not what the callee did then: where a library's
    function has several callers, its inner shares are taken to be the same for each.
    """

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries
        self._shares: dict[Any, tuple[float, float]] = {}
        self._has_users = any(_is_users_code(code) for code in entries)

    def blamed(self, code: Any) -> float:
        """Seconds for which it was the innermost function of the user's, or of Python where the user has none."""
        if not self._is_blamed(code):
            return 0.0
        entry = self._entries[code]
        inner = sum(edge.totaltime * self._inner(edge.code)[0] for edge in self._edges(entry))
        return float(entry.inlinetime + inner)

    def native(self, code: Any) -> float:
        """Of these, seconds in C functions."""
        if not self._is_blamed(code):
            return 0.0
        edges = self._edges(self._entries[code])
        return float(sum(edge.totaltime * self._inner(edge.code)[1] for edge in edges))

    def _is_blamed(self, code: Any) -> bool:
        """Whether time is counted for it rather than for what called it."""
        return _is_users_code(code) if self._has_users else _is_function(code)

    def _edges(self, entry: Any) -> list[Any]:
        return [edge for edge in entry.calls or () if edge.code in self._entries]

    def _inner(self, code: Any) -> tuple[float, float]:
        """Shares of a callee's time that its caller is to blame for: all of it, and in C."""
        if code in self._shares:
            return self._shares[code]
        entry = self._entries[code]
        if self._is_blamed(code) or entry.totaltime <= 0:
            share = (0.0, 0.0)
        elif not isinstance(code, CodeType) and not entry.calls:
            share = (1.0, 1.0)
        else:
            self._shares[code] = (0.0, 0.0)  # while it is found out: a recursion is not followed
            own = entry.inlinetime
            inner = [(edge.totaltime, *self._inner(edge.code)) for edge in self._edges(entry)]
            blamed = own + sum(total * of_all for total, of_all, _ in inner)
            native = (0.0 if isinstance(code, CodeType) else own) + sum(total * in_c for total, _, in_c in inner)
            share = (min(1.0, blamed / entry.totaltime), min(1.0, native / entry.totaltime))
        self._shares[code] = share
        return share


def _is_function(code: Any) -> bool:
    return isinstance(code, CodeType) and code.co_name not in _COMPREHENSIONS


def _is_users_code(code: Any) -> bool:
    return _is_function(code) and is_users(code.co_filename)


def _is_ours(code: Any) -> bool:
    return isinstance(code, CodeType) and _is_our_file(code.co_filename)


def _is_profilers(code: Any) -> bool:
    return isinstance(code, str) and "_lsprof.Profiler" in code


def _place(code: Any) -> Place:
    if isinstance(code, CodeType):
        return Place(code.co_name, code.co_filename, code.co_firstlineno)
    # "<built-in method time.sleep>", "<method 'resize' of 'ImagingCore' objects>"
    text = str(code).strip("<>").removeprefix("built-in method ").removeprefix("method ")
    return Place(text.replace("'", "").removesuffix(" objects"), "", 0)
