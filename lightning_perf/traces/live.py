"""Events of a profiler that runs in this process, without a file."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from .builder import ColumnBuilder
from .columns import Origin, Trace
from .json_stream import Event, as_batch
from .kinds import (
    ANNOTATION,
    DEVICE_ANNOTATION,
    KERNEL,
    KINDS,
    MEMCPY,
    MEMORY_NAME,
    MEMSET,
    OPERATOR,
    RUNTIME,
    UNKNOWN_DEVICE,
    has_details,
)

_BATCH_EVENTS: Final = 50_000  # that are in memory twice, as events and as columns
_RUNTIME_CALL: Final = re.compile(r"(cuda|cu|hip)[A-Z]")


def live_events(kineto_events: Iterable[Any]) -> Iterator[Event]:
    """Yield the events of ``profile.profiler.kineto_results.events()`` of torch 2.4 or newer, as in a trace file.

    Times count from the first event: in microseconds since 1970, a float has no nanoseconds.
    """
    base_ns: int | None = None
    for event in kineto_events:
        category = event.activity_type() if hasattr(event, "activity_type") else _category(event)
        kind = KINDS.get(category, UNKNOWN_DEVICE)
        name, thread, start_ns = _name(event), event.device_resource_id(), event.start_ns()
        base_ns = start_ns if base_ns is None else base_ns
        start_us = (start_ns - base_ns) / 1000
        if name == MEMORY_NAME:
            allocation = {"Bytes": int(event.nbytes()), "Device Type": int(not _is_on_host(event))}
            yield Event("i", category, name, 0, thread, start_us, args=_as_json(allocation))
            continue
        device = 0
        args: dict[str, Any] = {}
        if RUNTIME <= kind <= MEMSET:
            args["correlation"] = event.correlation_id()
        if kind in (KERNEL, MEMCPY, MEMSET, DEVICE_ANNOTATION):
            device = event.device_index()
            args |= {"device": device, "stream": thread}
            thread = 0
        if kind == MEMCPY:
            args["bytes"] = int(event.nbytes())
        if kind in (OPERATOR, ANNOTATION) and has_details(name):
            args |= {"Input Dims": event.shapes(), "Input type": event.dtypes()}
        yield Event("X", category, name, device, thread, start_us, event.duration_ns() / 1000, _as_json(args))


def _as_json(args: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(args))


def _name(event: Any) -> str:
    """Return the name; torch may cut a long one inside a character, so that it cannot be decoded."""
    try:
        return str(event.name())
    except UnicodeDecodeError:
        return "(unreadable name)"


def _is_on_host(event: Any) -> bool:
    return str(event.device_type()).endswith("CPU")


def _category(event: Any) -> str:
    """Return the category of an event if torch does not provide it."""
    name = _name(event)
    is_annotation = getattr(event, "is_user_annotation", bool)()  # a device has those of the host, around its work
    if _is_on_host(event):
        if getattr(event, "is_python_function", bool)():
            return "python_function"
        if is_annotation:
            return "user_annotation"
        return "cuda_runtime" if _RUNTIME_CALL.match(name) else "cpu_op"
    if is_annotation:
        return "gpu_user_annotation"
    if name.startswith("Memcpy"):
        return "gpu_memcpy"
    return "gpu_memset" if name.startswith("Memset") else "kernel"


def from_events(events: Iterable[Event]) -> Trace:
    """Return a trace of events in memory; raise ``TraceError`` without any event of a known category."""
    builder = ColumnBuilder()
    remaining = iter(events)
    while batch := list(itertools.islice(remaining, _BATCH_EVENTS)):
        builder.add(as_batch(batch))
    return builder.build("live", Origin())
