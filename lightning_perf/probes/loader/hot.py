"""The functions and lines in which making samples spends its time."""

from __future__ import annotations

import gc
import importlib.util
import linecache
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal, NamedTuple

from lightning_perf.records.loader_probe import HotFunction, HotLine

from .child import one_line
from .profiles import MIN_SAMPLES, Place, Profile, Weight, has_sampler, is_users, profile_exactly, profile_sampled

MIN_SHARE = 0.02
"""Functions with less are left out: nothing is won there."""
MAX_FUNCTIONS = 12
_MAX_PROFILED_CALLS = 2000
_MAX_TRACED_LINES = 200_000
_NATIVE_LINE_S = 5e-6
"""A line of Python that only moves names and small numbers about takes 0.02–0.2 us on machines of the last ten years; a
function whose lines take this long on average, without calling anything, is in C: operators on arrays or tensors."""
_SAME_SPEED = 1.1
"""Two profilers that slow the work by this little against one another are equally true."""


class Hot(NamedTuple):
    """Functions, the lines of the first one, and why there are none."""

    functions: tuple[HotFunction, ...]
    lines: tuple[HotLine, ...]
    missing: dict[str, str]


def find_hot(
    work: Callable[[], Any], where: Literal["getitem", "collate"], plain_s: float, budget_s: float, wants_lines: bool
) -> Hot:
    """Profiles calls of ``work``: exactly, by samples, then by line.

    Shares are taken from whichever profiler slowed the work less, calls from the exact one.

    Args:
        work: One call of the dataset, or of collate.
        where: Which of them.
        plain_s: Seconds of one such call unprofiled.
        budget_s: What all passes together may take.
        wants_lines: Whether to look at the first function line by line.
    """
    missing: dict[str, str] = {}
    begin_s = time.perf_counter()
    sampled: Profile | None = None
    share_of_exact = 0.35 if has_sampler() else 0.7
    exact = profile_exactly(work, begin_s + share_of_exact * budget_s, _MAX_PROFILED_CALLS)
    if has_sampler():
        sampled = profile_sampled(work, begin_s + 0.75 * budget_s)
        if sampled.seconds < MIN_SAMPLES * 0.001:
            sampled = None
    else:
        missing["functions.sampled"] = "pyinstrument is not installed: shares are cProfile's, which slows Python down"
    best = _truer(exact, sampled, plain_s)
    ranked = _ranked(best)
    if ranked:
        _mark_operators(work, ranked[0][0], exact)
    functions = tuple(_function(place, weight, best, exact, where) for place, weight in ranked)
    lines: tuple[HotLine, ...] = ()
    if wants_lines and ranked:
        place = ranked[0][0]
        lines, reason = _lines(work, place, exact.codes.get(place), begin_s + budget_s)
        if not lines and sampled is not None:
            lines = _sampled_lines(place, sampled)
        if not lines:
            missing["lines"] = reason
    return Hot(functions, lines, missing)


def _truer(exact: Profile, sampled: Profile | None, plain_s: float) -> Profile:
    if sampled is None:
        return exact
    slowed = [profile.seconds / max(1, profile.n_calls) / max(plain_s, 1e-9) for profile in (exact, sampled)]
    return exact if slowed[0] <= slowed[1] * _SAME_SPEED else sampled


def _ranked(profile: Profile) -> list[tuple[Place, Weight]]:
    """The functions worth telling, worst first."""
    least_s = MIN_SHARE * profile.seconds
    kept = [
        (place, weight)
        for place, weight in profile.weights.items()
        if weight.blamed_s >= least_s
        or (is_users(place.file) and weight.total_s >= least_s)
        or (weight.own_s >= 5 * least_s)
    ]
    # Of two that are to blame alike, the one further in is the nearer cause.
    kept.sort(key=lambda pair: (-pair[1].blamed_s, not is_users(pair[0].file), -pair[1].own_s))
    return kept[:MAX_FUNCTIONS]


def _function(
    place: Place, weight: Weight, profile: Profile, exact: Profile, where: Literal["getitem", "collate"]
) -> HotFunction:
    counted = exact.weights.get(place)
    native_s, blamed_s = weight.native_s, weight.blamed_s
    if (
        counted is not None
        and counted.blamed_s > 0
        and counted.native_s / counted.blamed_s > native_s / max(blamed_s, 1e-12)
    ):
        native_s, blamed_s = counted.native_s, counted.blamed_s
    is_native = not place.file or (blamed_s > 0 and native_s > 0.5 * blamed_s)
    total_s = max(profile.seconds, 1e-12)
    return HotFunction(
        name=(counted.label if counted is not None and "." in counted.label else "") or weight.label or place.name,
        file=place.file,
        line=place.line,
        share=min(1.0, weight.total_s / total_s),
        own_share=min(1.0, weight.own_s / total_s),
        blamed_share=min(1.0, weight.blamed_s / total_s),
        n_calls=None if counted is None or counted.calls is None else counted.calls / max(1, exact.n_calls),
        where=where,
        kind="native" if is_native else "python",
        basis=profile.basis,
        is_users=is_users(place.file),
    )


def _mark_operators(work: Callable[[], Any], place: Place, exact: Profile) -> None:
    """Counts as C what a function does on its own in too few lines to be Python."""
    weight = exact.weights.get(place)
    code = exact.codes.get(place)
    if weight is None or code is None or weight.own_s < 0.3 * weight.blamed_s:
        return
    n_lines = _lines_run(work, code)
    if n_lines and weight.own_s / max(1, exact.n_calls) / n_lines > _NATIVE_LINE_S:
        weight.native_s += weight.own_s


def _lines_run(work: Callable[[], Any], code: CodeType) -> int:
    """Lines of a function that one call of the work runs; at most some hundred thousand are counted."""
    n_lines = 0

    def in_function(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal n_lines
        if event == "line":
            n_lines += 1
            if n_lines >= _MAX_TRACED_LINES:
                sys.settrace(None)
                frame.f_trace = None
        return in_function

    sys.settrace(lambda frame, event, arg: in_function if frame.f_code is code else None)
    try:
        work()
    finally:
        sys.settrace(None)
    return n_lines


# -- lines ------------------------------------------------------------------------------------------------------------


def _lines(
    work: Callable[[], Any], place: Place, code: CodeType | None, until_s: float
) -> tuple[tuple[HotLine, ...], str]:
    """Lines of one function by line_profiler, worst first; and why there are none."""
    if importlib.util.find_spec("line_profiler") is None:
        return (), "line_profiler is not installed (the extra 'lines')"
    function = _function_of(code) if code is not None else None
    if function is None:
        return (), f"the function object of {place.name} was not found"
    from line_profiler import LineProfiler

    try:
        profiler = LineProfiler()
        profiler.add_function(function)
        profiler.enable_by_count()
        try:
            work()
            while time.perf_counter() < until_s:
                work()
        finally:
            profiler.disable_by_count()
        stats = profiler.get_stats()
    except Exception as error:  # noqa: BLE001 - the data itself was made without trouble before; this is an extra
        return (), f"line_profiler raised {one_line(error)}"
    timings = next((rows for key, rows in stats.timings.items() if rows and key[1] == place.line), [])
    total = sum(ticks for _, _, ticks in timings)
    if total <= 0:
        return (), "line_profiler saw no time in it"
    rows = sorted(timings, key=lambda row: -row[2])
    return tuple(_hot_line(place.file, line, ticks / total, "line_profiler") for line, _, ticks in rows[:8]), ""


def _sampled_lines(place: Place, sampled: Profile) -> tuple[HotLine, ...]:
    weight = sampled.weights.get(place)
    if weight is None or weight.blamed_s <= 0:
        return ()
    rows = weight.lines.most_common(8)
    return tuple(_hot_line(place.file, line, seconds / weight.blamed_s, "pyinstrument") for line, seconds in rows)


def _hot_line(file: str, line: int, share: float, basis: str) -> HotLine:
    return HotLine(file=file, line=line, text=linecache.getline(file, line).strip()[:200], share=share, basis=basis)


def _function_of(code: CodeType) -> FunctionType | None:
    """The function object that runs a code object."""
    # Frozen objects, which are all that the parent had, are not searched for referrers.
    was_enabled = gc.isenabled()
    gc.disable()
    gc.unfreeze()
    try:
        found = [each for each in gc.get_referrers(code) if isinstance(each, FunctionType)]
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
    return found[0] if found else None
