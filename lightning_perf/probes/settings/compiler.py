"""Compilations, recompilations with reasons, and graph breaks of ``torch.compile`` during a run.

Nothing in dynamo is switched on or changed. It keeps counts anyway, and notifies listeners when it compiles; what a
version of torch does not report is missing.
"""

import sys
from pathlib import Path
from typing import Any

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.model.summary import is_compiled
from lightning_perf.probes.sampled_steps.code_lines import USER, SourceLine, owner_of
from lightning_perf.records import CompilerWatch, GraphBreak, Recompile

WARMUP_STEPS = 10
"""Steps in which compilation is expected: for the first batches, and for the first one of another size."""

_OURS = str(Path(__file__).parents[2])
_MAX_LISTED = 16
_MAX_KEPT = 4096
_MAX_REASON = 200


def dynamo(part: str) -> Any:
    """Return a module of dynamo; None if it is not imported, which would take seconds."""
    return sys.modules.get(f"torch._dynamo.{part}")


def is_any_compiled(module: Any) -> bool:
    """Return whether a module is compiled, or dynamo has compiled anything in this process: operators may be hidden."""
    counters = getattr(dynamo("utils"), "counters", {})
    return bool(counters.get("frames")) or is_compiled(module)


class CompilerProbe(Probe):
    """Probe of ``torch.compile``; excludes steps that compile from statistics."""

    name = "compiler"
    field, reason = "compiler", "nothing was compiled"
    stages = ("fit",)
    after = ("steps",)

    def __init__(self, run: RunContext) -> None:
        self.compile_ns = 0
        self._now_ns, self._main = run.now_ns, run.loop.main
        self._began_ns: int | None = None
        self._compiled_steps: set[int] = set()
        self._after_warmup_ns = 0
        self._handler: Any = None
        self._last_metrics: Any = None
        self._n_breaks = 0
        self._metrics: list[tuple[int, Any]] = []  # with the step
        self._breaks: list[Any] = []
        self._counted_before: dict[str, int] = {}
        self._has_begun = False

    def loops_ready(self, run: RunContext) -> None:
        """Start, if dynamo was imported meanwhile."""
        self.start()

    def start(self) -> None:
        """Start, ignoring earlier compilations. Does nothing until dynamo is imported."""
        if self._has_begun:
            return
        utils, callback = dynamo("utils"), dynamo("callback")
        if utils is None:
            return
        self._has_begun = True
        self._last_metrics = next(iter(reversed(_all_metrics(utils))), None)
        self._n_breaks = len(getattr(utils, "graph_break_reasons", ()))
        self._counted_before = dict(getattr(utils, "counters", {}).get("graph_break", {}))
        handler: Any = getattr(callback, "callback_handler", None)
        if all(hasattr(handler, name) for name in ("start_callbacks", "end_callbacks")):
            self._handler = handler
            handler.start_callbacks.append(self._starts)
            handler.end_callbacks.append(self._ends)

    @property
    def _step(self) -> int:
        """The current step; 1 for the first."""
        return self._main.n_steps + 1

    def poll(self) -> None:
        """Read what dynamo recorded since the last call."""
        utils = dynamo("utils")
        if utils is None or not self._has_begun:
            return
        listed = _all_metrics(utils)
        new = []
        for each in reversed(listed):
            if each is self._last_metrics:
                break
            new.append(each)
        if listed:
            self._last_metrics = listed[-1]
        self._metrics += [(self._step, each) for each in reversed(new)][: _MAX_KEPT - len(self._metrics)]
        reasons = getattr(utils, "graph_break_reasons", [])
        if len(reasons) < self._n_breaks:  # torch._dynamo.reset()
            self._n_breaks = 0
        self._breaks += reasons[self._n_breaks :][: _MAX_KEPT - len(self._breaks)]
        self._n_breaks = len(reasons)

    def close(self) -> None:
        handler = self._handler
        if handler is None:
            return
        for callbacks, own in ((handler.start_callbacks, self._starts), (handler.end_callbacks, self._ends)):
            if own in callbacks:
                callbacks.remove(own)
        self._handler = None

    # Errors in dynamo's callbacks would reach the user, so these never raise. Older versions pass no arguments.

    def _starts(self, *args: Any) -> None:
        try:
            self._began_ns = self._now_ns()
            self._main.leave_out()
            self._compiled_steps.add(self._step)
        except Exception as error:  # noqa: BLE001 - reported with the session; the user's function is compiled all the same
            raise_if_from_signal(error)
            self.error, self._began_ns = error, None

    def _ends(self, *args: Any) -> None:
        try:
            if self._began_ns is not None:
                took_ns = self._now_ns() - self._began_ns
                self.compile_ns += took_ns
                self._after_warmup_ns += took_ns if self._step > WARMUP_STEPS else 0
                self._began_ns = None
            self.poll()
        except Exception as error:  # noqa: BLE001 - as above
            raise_if_from_signal(error)
            self.error, self._began_ns = error, None

    def record(self) -> CompilerWatch | None:
        self.poll()
        compiled = [(step, m) for step, m in self._metrics if _is_of_forward(m)]
        if not compiled and not self._compiled_steps:
            return None
        missing = {}
        if self._handler is None and not self._compiled_steps:
            missing["n_compiled_steps"] = "this version of torch does not report when it compiles"
        seconds = sum(_seconds(m) for _, m in self._metrics)
        late_s = sum(_seconds(m) for step, m in self._metrics if step > WARMUP_STEPS)
        return CompilerWatch(
            n_compiles=len(compiled),
            compile_s=self.compile_ns / 1e9 or seconds,
            n_compiled_steps=len(self._compiled_steps),
            n_after_warmup=sum(step > WARMUP_STEPS for step, _ in compiled),
            compile_after_warmup_s=self._after_warmup_ns / 1e9 or late_s,
            n_functions=len({_function(m) for _, m in compiled}),
            recompiles=_recompiles(compiled),
            recompile_limit=getattr(dynamo("config"), "recompile_limit", None),  # older versions name it otherwise
            graph_breaks=self._graph_breaks(),
            missing=missing,
        )

    def _graph_breaks(self) -> tuple[GraphBreak, ...]:
        found: dict[tuple[str, int, str], GraphBreak] = {}

        def add(reason: str, place: SourceLine, n: int = 1) -> None:
            key = (place.file, place.line, reason)
            n_before = found[key].n if key in found else 0
            found[key] = GraphBreak(reason=reason, n=n_before + n, **place.fields())

        for each in self._breaks:
            place = _innermost(getattr(each, "user_stack", ()))
            if getattr(each, "graph_break", True) and not place.file.startswith(_OURS):  # no probe's hook
                add(_first_line(getattr(each, "reason", "")), place)
        for _, metrics in self._metrics:  # one in a loop leaves the whole function uncompiled
            reason = _first_line(getattr(metrics, "fail_reason", "") or "")
            if not reason or not _is_of_forward(metrics):
                continue
            file, line = _failed_at(metrics)
            if (file, line, reason) not in found and not file.startswith(_OURS):
                add(reason, SourceLine(USER, file, line, _function(metrics)[0]))
        if not found:  # others that ended the whole function are only counted
            counted = getattr(dynamo("utils"), "counters", {}).get("graph_break", {})
            for reason, n in dict(counted).items():
                if (n_new := n - self._counted_before.get(reason, 0)) > 0:
                    add(_first_line(reason), SourceLine(USER, "", 0, ""), n_new)
        return tuple(sorted(found.values(), key=lambda one: -one.n)[:_MAX_LISTED])


def _all_metrics(utils: Any) -> list[Any]:
    get = getattr(utils, "get_compilation_metrics", None)
    return list(get()) if get is not None else []


def _is_of_forward(metrics: Any) -> bool:
    """Return whether metrics are of a user's function, not of its backward pass."""
    return bool(getattr(metrics, "co_name", None)) and getattr(metrics, "is_forward", True) is not False


def _function(metrics: Any) -> tuple[str, str, int]:
    name, file = str(metrics.co_name), str(getattr(metrics, "co_filename", "") or "")
    return name, file, int(getattr(metrics, "co_firstlineno", 0) or 0)


def _failed_at(metrics: Any) -> tuple[str, int]:
    """Return the line that could not be compiled, or else the line of its function."""
    file, line = getattr(metrics, "fail_user_frame_filename", None), getattr(metrics, "fail_user_frame_lineno", None)
    return (str(file), int(line)) if file and line else _function(metrics)[1:]


def _seconds(metrics: Any) -> float:
    microseconds = getattr(metrics, "duration_us", None)
    if isinstance(microseconds, (int, float)):
        return microseconds / 1e6
    return float(getattr(metrics, "entire_frame_compile_time_s", None) or 0.0)


def _recompiles(compiled: list[tuple[int, Any]]) -> tuple[Recompile, ...]:
    found: dict[tuple[str, str, int], list[tuple[int, Any]]] = {}
    for step, metrics in compiled:
        if int(getattr(metrics, "cache_size", 0) or 0) > 0:
            found.setdefault(_function(metrics), []).append((step, metrics))
    listed = [
        Recompile(
            function=name,
            file=file,
            line=line,
            n=len(each),
            n_after_warmup=sum(step > WARMUP_STEPS for step, _ in each),
            reason=next((r for _, m in reversed(each) if (r := _failed_guard(m))), ""),
            compile_s=sum(_seconds(m) for _, m in each),
        )
        for (name, file, line), each in found.items()
    ]
    return tuple(sorted(listed, key=lambda one: -one.n)[:_MAX_LISTED])


def _failed_guard(metrics: Any) -> str:
    """Return the guard that failed, without the number of the compiled code."""
    reason = _first_line(getattr(metrics, "recompile_reason", "") or "")
    head, _, rest = reason.partition(": ")
    return rest if head.replace("/", "").isdigit() and rest else reason


def _first_line(text: Any) -> str:
    lines = str(text).strip().splitlines()
    return lines[0].strip()[:_MAX_REASON] if lines else ""


def _innermost(stack: Any) -> SourceLine:
    """Return the user's innermost line among ``traceback.FrameSummary`` objects, or the innermost one if none is."""
    frames = list(stack or ())
    users = [frame for frame in frames if owner_of(frame.filename) == USER]
    if not frames:
        return SourceLine(USER, "", 0, "")
    frame = (users or frames)[-1]
    return SourceLine(USER, frame.filename, frame.lineno or 0, frame.name)
