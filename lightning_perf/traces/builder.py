"""Build the columns of a trace, batch by batch."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from lightning_perf.errors import TraceError

from .columns import Allocations, DetailsByRow, Origin, Trace
from .json_stream import UNREADABLE, Batch, Complete, Event, Instant
from .kinds import (
    ANNOTATION,
    IGNORED,
    KERNEL,
    KINDS,
    MEMCPY,
    MEMORY_NAME,
    MEMSET,
    OPERATOR,
    RUNTIME,
    STEP_PREFIX,
    UNKNOWN_DEVICE,
    has_details,
    is_loader_name,
)
from .nesting import Rows

_MAX_US: Final = 3.2e13
"""Events more than a year from the others are dropped: a time of 0 would make the trace decades long."""

_MAX_TIME_US: Final = 4.0e15
"""Times beyond the year 2096 are dropped, so that sums in nanoseconds fit 64 bits."""

_MAX_BLOCKS: Final = 1e12
"""Larger numbers of blocks per multiprocessor count as unknown; such a grid would run for days."""

_MAX_ALLOCATED: Final = 2**48
"""Bytes of one allocation. Larger ones, beyond an address space, count as unknown, so that sums fit 64 bits."""

_NO_ALLOCATIONS: Final = tuple(np.empty(0, dtype) for dtype in (np.float64, np.int32, np.int64, np.bool_))


class DeviceArguments(msgspec.Struct, gc=False):
    """The arguments of a runtime call, a piece of device work or an allocation."""

    correlation: Any = -1
    device: Any = -1
    stream: Any = -1
    bytes: Any = -1
    occupancy: Any = msgspec.field(default=math.nan, name="est. achieved occupancy %")
    blocks: Any = msgspec.field(default=math.nan, name="blocks per SM")
    allocated: Any = msgspec.field(default=-1, name="Bytes")
    device_type: Any = msgspec.field(default=0, name="Device Type")


_decode_all_device_arguments = msgspec.json.Decoder(list[DeviceArguments]).decode
_decode_device_arguments = msgspec.json.Decoder(DeviceArguments).decode


class _Index(dict[Any, int]):
    """Numbers keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _TextIndex(_Index):
    """Numbers strings; other keys raise ``TypeError``."""

    def __missing__(self, key: Any) -> int:
        if not isinstance(key, str):
            raise TypeError(f"expected a string, got {type(key).__name__}")
        return super().__missing__(key)


class ColumnBuilder:
    """Collects the columns of events, batch by batch."""

    def __init__(self) -> None:
        self._n_events = 0
        self._n_dropped = 0
        self._categories = _TextIndex()
        self._kind_of_category = np.empty(0, dtype=np.uint8)
        self._names = _TextIndex()
        self._has_details = np.empty(0, dtype=np.bool_)  # by name, like the next
        self._is_annotation = np.empty(0, dtype=np.bool_)
        self._threads = _Index()
        self._base_us: float | None = None
        self._batches: list[tuple[npt.NDArray[Any], ...]] = []
        self._details: dict[int, bytes] = {}
        self._n_rows = 0
        self._allocations: list[tuple[npt.NDArray[Any], ...]] = []

    def add(self, batch: Batch) -> None:
        """Add events read from a file."""
        self._n_events += batch.n_events
        self._add_allocations([event for event in batch.memory if event.name == MEMORY_NAME])
        complete = batch.complete
        try:
            columns = self._columns(complete)
        except (TypeError, ValueError, OverflowError):
            # Some event is malformed: check each one.
            usable = [event for event in map(_sanitized, complete) if event is not None]
            self._n_dropped += len(complete) - len(usable)
            complete = usable
            columns = self._columns(complete)
        self._append(complete, columns)

    def _add_allocations(self, events: Sequence[Event | Instant]) -> None:
        if not events:
            return
        arguments = _device_arguments([event.args for event in events])
        sizes = _integers([each.allocated for each in arguments], _MAX_ALLOCATED)  # -1 where memory was freed
        times_us = _floats([event.ts for event in events], _MAX_TIME_US)
        kept = np.flatnonzero((sizes > 0) & ~np.isnan(times_us))
        on_device = _integers([each.device_type for each in arguments], 2**31)[kept] > 0  # 0 is the host
        threads = _numbers(self._threads, [(_id_of(events[i].pid), _id_of(events[i].tid)) for i in kept.tolist()])
        self._allocations.append((times_us[kept], threads, sizes[kept], on_device))

    def _columns(self, events: Sequence[Event | Complete]) -> tuple[npt.NDArray[Any], ...]:
        # List comprehensions, because attrgetter takes three times as long.
        n = len(events)
        starts = np.fromiter([event.ts for event in events], np.float64, n)
        durations = np.fromiter([event.dur for event in events], np.float64, n)
        categories = _numbers(self._categories, [event.cat for event in events])
        names = _numbers(self._names, [event.name for event in events])
        places = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        threads = np.fromiter(map(self._threads.__getitem__, places), np.int32, n)
        self._register_new_names()
        return starts, durations, self._kind_of_category[categories], names, threads

    def _append(self, events: Sequence[Event | Complete], columns: tuple[npt.NDArray[Any], ...]) -> None:
        starts_us, durations_us, kinds, names, threads = columns
        if self._base_us is None:
            usable = starts_us[np.abs(starts_us) < _MAX_TIME_US]
            self._base_us = float(np.floor(np.median(usable))) if len(usable) else None
        # Steps and fetches are annotations; the profiler of torch 1.8 records them as operators.
        kinds[(kinds == OPERATOR) & self._is_annotation[names]] = ANNOTATION
        offsets = starts_us - (self._base_us or 0.0)  # exact, because both are close: rounding loses no nanoseconds
        with np.errstate(invalid="ignore"):
            is_plausible = (np.abs(offsets) < _MAX_US) & (durations_us >= 0) & (durations_us < _MAX_US)
        self._n_dropped += int((~is_plausible).sum())
        keep = np.flatnonzero(is_plausible & (kinds != IGNORED))
        starts = np.rint(offsets[keep] * 1000).astype(np.int64)
        ends = starts + np.rint(durations_us[keep] * 1000).astype(np.int64)
        kinds, names, threads = kinds[keep], names[keep], threads[keep]
        joined = self._device_columns(events, keep, kinds, names)
        self._batches.append((kinds, names, threads, starts, ends, *joined))
        self._n_rows += len(keep)

    def _register_new_names(self) -> None:
        n_known = len(self._kind_of_category)
        if len(self._categories) > n_known:
            new = itertools.islice(self._categories, n_known, None)
            kinds = [KINDS.get(category.lower(), UNKNOWN_DEVICE) for category in new]
            self._kind_of_category = np.append(self._kind_of_category, np.array(kinds, dtype=np.uint8))
        n_known = len(self._has_details)
        if len(self._names) > n_known:
            names = list(itertools.islice(self._names, n_known, None))
            notes = [name.startswith(STEP_PREFIX) or is_loader_name(name) for name in names]
            self._has_details = np.append(self._has_details, [has_details(name) for name in names])
            self._is_annotation = np.append(self._is_annotation, notes)

    def _device_columns(
        self, events: Sequence[Event | Complete], keep: Rows, kinds: npt.NDArray[np.uint8], names: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[Any], ...]:
        n = len(keep)
        correlations = np.full(n, -1, dtype=np.int64)
        devices = np.full(n, -1, dtype=np.int32)
        streams = np.full(n, -1, dtype=np.int32)
        sizes = np.full(n, -1, dtype=np.int64)
        occupancies = np.full(n, np.nan, dtype=np.float32)
        blocks = np.full(n, np.nan, dtype=np.float32)
        joins = np.flatnonzero((kinds >= RUNTIME) & (kinds <= MEMSET))
        if len(joins):
            arguments = _device_arguments([events[row].args for row in keep[joins].tolist()])
            correlations[joins] = _integers([each.correlation for each in arguments], 2**63)
            works = np.flatnonzero(kinds[joins] != RUNTIME)
            on_device = [arguments[i] for i in works.tolist()]
            devices[joins[works]] = _integers([each.device for each in on_device], 2**31)
            streams[joins[works]] = _integers([each.stream for each in on_device], 2**31)
            copies = np.flatnonzero(kinds[joins] == MEMCPY)
            sizes[joins[copies]] = _integers([arguments[i].bytes for i in copies.tolist()], 2**63)
            kernels = np.flatnonzero(kinds[joins] == KERNEL)
            on_device = [arguments[i] for i in kernels.tolist()]
            occupancies[joins[kernels]] = _floats([each.occupancy for each in on_device], 100.0) / 100
            blocks[joins[kernels]] = _floats([each.blocks for each in on_device], _MAX_BLOCKS)
        may_have = (kinds == OPERATOR) | (kinds == ANNOTATION) | (kinds == KERNEL)
        detailed = np.flatnonzero(self._has_details[names] & may_have)
        for row, index in zip((detailed + self._n_rows).tolist(), keep[detailed].tolist(), strict=True):
            self._details[row] = bytes(events[index].args)  # a copy; the original keeps the whole text
        return correlations, devices, streams, sizes, occupancies, blocks

    def build(self, source: str, origin: Origin, place: str = "") -> Trace:
        """Return the trace; raise ``TraceError`` about ``place`` if no complete event is of a known category."""
        if not self._n_rows:
            raise TraceError(
                f"{place or source} has {self._n_events:,} entries but no complete profiler event "
                f'("ph": "X" with "cat", "ts" and "dur"). Expected a trace exported by torch.profiler.'
            )
        columns = [np.concatenate(parts) for parts in zip(*self._batches, strict=True)]
        self._batches.clear()
        starts, ends = columns[3], columns[4]
        # The first batch need not hold the first event; whole microseconds, because the base is one.
        early_us = int(starts.min()) // 1000
        starts -= early_us * 1000
        ends -= early_us * 1000
        order = np.lexsort((-ends, starts))
        kinds, names, threads, starts, ends, correlations, devices, streams, sizes, occupancies, blocks = (
            column[order] for column in columns
        )
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        rows = position[np.fromiter(self._details, np.int64, len(self._details))].tolist()
        details = DetailsByRow(dict(zip(rows, self._details.values(), strict=True)))
        times_us, own_threads, own_sizes, on_device = (
            np.concatenate(parts) for parts in zip(_NO_ALLOCATIONS, *self._allocations, strict=True)
        )
        moments = np.rint((times_us - (self._base_us or 0.0) - early_us) * 1000).astype(np.int64)
        thread_keys, new_ids = _merged_threads(list(self._threads))
        return Trace(
            source=source, origin=origin, n_events=self._n_events, n_dropped=self._n_dropped,
            categories=frozenset(map(str, self._categories)), names=tuple(self._names),
            threads=thread_keys, kinds=kinds, name_ids=names, thread_ids=new_ids[threads], starts=starts, ends=ends,
            correlations=correlations, devices=devices, streams=streams, sizes=sizes,
            occupancies=occupancies, blocks_per_sm=blocks, details=details,
            base_us=(self._base_us or 0.0) + early_us,
            allocations=Allocations(moments, new_ids[own_threads], own_sizes, on_device),
        )  # fmt: skip


def _merged_threads(keys: list[tuple[Any, Any]]) -> tuple[tuple[tuple[Any, Any], ...], npt.NDArray[np.int32]]:
    """Merge threads written as 7 and as "7"; return them, and the new number of each."""
    merged = _Index()
    new_ids = np.array([merged[_as_number(pid), _as_number(tid)] for pid, tid in keys], dtype=np.int32)
    return tuple(merged), new_ids


def _id_of(value: Any) -> int | str:
    """Return the id of a process or thread."""
    return value if isinstance(value, (int, str)) else repr(value)


def _as_number(value: Any) -> Any:
    """Return a string of digits as a number; any other value itself."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else value


def _device_arguments(texts: list[msgspec.Raw]) -> list[DeviceArguments]:
    """Decode the arguments of many events at once, or one by one if some are malformed."""
    try:
        return _decode_all_device_arguments(b"[" + b",".join(texts) + b"]")
    except UNREADABLE:
        return [_device_arguments_of_one(text) for text in texts]


def _device_arguments_of_one(text: msgspec.Raw) -> DeviceArguments:
    try:
        return _decode_device_arguments(text)
    except UNREADABLE:
        return DeviceArguments()


def _numbers(index: _Index, keys: list[Any]) -> npt.NDArray[np.int32]:
    return np.fromiter(map(index.__getitem__, keys), np.int32, len(keys))


def _integers(values: list[Any], limit: int) -> npt.NDArray[np.int64]:
    """Return the values as numbers from 0 up to a limit; -1 for others."""
    try:
        numbers = np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        parsed = map(_as_number, values)
        numbers = np.array([v if type(v) is int and 0 <= v < limit else -1 for v in parsed], dtype=np.int64)
    numbers[(numbers < 0) | (numbers >= limit) if limit < 2**63 else numbers < 0] = -1
    return numbers


def _floats(values: list[Any], limit: float) -> npt.NDArray[np.float64]:
    """Return the values as numbers from 0 up to a limit, which is allowed; NaN for others."""
    try:
        numbers = np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([v if isinstance(v, (int, float)) and 0 <= v <= limit else np.nan for v in values], float)
    numbers[~((numbers >= 0) & (numbers <= limit))] = np.nan
    return numbers


def _sanitized(event: Event | Complete) -> Event | None:
    """Return the event with the right types; None if its times are not numbers."""
    try:
        start_us, duration_us = float(event.ts), float(event.dur)
    except (TypeError, ValueError, OverflowError):
        return None
    category, name = (value if isinstance(value, str) else repr(value) for value in (event.cat, event.name))
    return Event("X", category, name, _id_of(event.pid), _id_of(event.tid), start_us, duration_us, event.args)
