"""Events of a profiler that runs in this process, without a file."""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class LiveEvent:
    """One event of a running profiler.

    Attributes:
        category: As in a trace file, e.g. ``"cpu_op"`` or ``"kernel"``.
        start_ns: By any clock, the same for all events.
        thread: Thread of the host; 0 for device work.
        correlation: Joins a runtime call with the device work that it enqueued; -1 for none.
        device: Device index of device work; 0 for an allocation on a device; -1 for other events.
        stream: Stream of device work; -1 for other events.
        size_bytes: Bytes that a copy moved or an allocation took; -1 for other events and where memory is freed.
        shapes: Input shapes; None if not recorded.
        types: Input types; None if not recorded.
    """

    category: str
    name: str
    start_ns: int
    duration_ns: int
    thread: int = 0
    correlation: int = -1
    device: int = -1
    stream: int = -1
    size_bytes: int = -1
    shapes: Any = None
    types: Any = None


def live_events(kineto_events: Iterable[Any]) -> Iterator[LiveEvent]:
    """Read the events of ``profile.profiler.kineto_results.events()`` of torch 2.4 or newer."""
    for event in kineto_events:
        category = event.activity_type() if hasattr(event, "activity_type") else _category(event)
        kind = KINDS.get(category, UNKNOWN_DEVICE)
        is_device = kind in (KERNEL, MEMCPY, MEMSET, DEVICE_ANNOTATION)
        name = _name(event)
        is_memory = name == MEMORY_NAME
        detailed = kind in (OPERATOR, ANNOTATION) and has_details(name)
        yield LiveEvent(
            category, name, event.start_ns(), event.duration_ns(),
            thread=event.device_resource_id() if not is_device else 0,
            correlation=event.correlation_id() if RUNTIME <= kind <= MEMSET else -1,
            device=event.device_index() if is_device else 0 if is_memory and not _is_on_host(event) else -1,
            stream=event.device_resource_id() if is_device else -1,
            size_bytes=event.nbytes() if (kind == MEMCPY or is_memory) and hasattr(event, "nbytes") else -1,
            shapes=event.shapes() if detailed else None,
            types=event.dtypes() if detailed else None,
        )  # fmt: skip


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
    if _is_on_host(event):
        if getattr(event, "is_python_function", bool)():
            return "python_function"
        if name.startswith(("cuda", "hip", "cu")) and "::" not in name:
            return "cuda_runtime"
        return "user_annotation" if getattr(event, "is_user_annotation", bool)() else "cpu_op"
    if name.startswith("Memcpy"):
        return "gpu_memcpy"
    return "gpu_memset" if name.startswith("Memset") else "kernel"


def from_events(events: Iterable[LiveEvent]) -> Trace:
    """Return a trace of events in memory; raise ``TraceError`` without any event of a known category."""
    builder = ColumnBuilder()
    batch: list[Event] = []
    for each in events:
        batch.append(_as_event(each))
        if len(batch) == _BATCH_EVENTS:
            builder.add(as_batch(batch))
            batch = []
    builder.add(as_batch(batch))
    return builder.build("live", Origin())


def _as_event(each: LiveEvent) -> Event:
    if each.name == MEMORY_NAME:
        args = msgspec.Raw(msgspec.json.encode({"Bytes": each.size_bytes, "Device Type": int(each.device >= 0)}))
        return Event("i", each.category, each.name, 0, each.thread, each.start_ns / 1000, args=args)
    arguments: dict[str, Any] = {}
    if each.correlation >= 0:
        arguments["correlation"] = each.correlation
    if each.device >= 0:
        arguments |= {"device": each.device, "stream": each.stream}
    if each.size_bytes >= 0:
        arguments["bytes"] = each.size_bytes
    if each.shapes is not None:
        arguments |= {"Input Dims": each.shapes, "Input type": each.types}
    return Event(
        "X", each.category, each.name, each.device if each.device >= 0 else 0, each.thread,
        each.start_ns / 1000, each.duration_ns / 1000,
        msgspec.Raw(msgspec.json.encode(arguments) if arguments else b"{}"),
    )  # fmt: skip
