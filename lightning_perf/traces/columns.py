"""A trace as columns: one array per property, one row per event."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from .intervals import Intervals, Times
from .json_stream import UNREADABLE
from .kinds import UNKNOWN_DEVICE
from .nesting import Rows


class Details(msgspec.Struct, gc=False):
    """Recorded arguments of an operator or a collective kernel."""

    shapes: Any = msgspec.field(default=None, name="Input Dims")
    old_shapes: Any = msgspec.field(default=None, name="Input dims")
    types: Any = msgspec.field(default=None, name="Input type")
    stack: Any = msgspec.field(default=None, name="Call stack")
    n_elements: Any = msgspec.field(default=None, name="In msg nelems")
    dtype: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")


_decode_details = msgspec.json.Decoder(Details).decode


class DetailsByRow:
    """Arguments of events by row, decoded on demand."""

    def __init__(self, texts: dict[int, bytes]) -> None:
        self._texts = texts
        self._decoded: dict[int, Details | None] = {}

    def get(self, row: int) -> Details | None:
        """Return the arguments of a row; None if there are none that can be read."""
        if row not in self._texts:
            return None
        if row not in self._decoded:
            self._decoded[row] = _details(self._texts[row])
        return self._decoded[row]

    def values(self) -> Iterator[Details]:
        """Yield the arguments of all rows without keeping them."""
        return (details for text in self._texts.values() if (details := _details(text)) is not None)


def _details(text: bytes) -> Details | None:
    try:
        return _decode_details(text)
    except UNREADABLE:
        return None


@dataclasses.dataclass(frozen=True)
class Origin:
    """Job and devices of a trace.

    Attributes:
        rank: None if unknown.
        world_size: None if unknown.
        devices: Properties of each device, as the profiler wrote them; empty if unknown.
        base_ns: Nanoseconds since 1970 from which the trace's times count; 0 if they count from 1970.
    """

    rank: int | None = None
    world_size: int | None = None
    devices: tuple[dict[str, Any], ...] = ()
    base_ns: int = 0


class Allocations(NamedTuple):
    """Allocations that ``profile_memory=True`` records: when, by which thread, bytes, and whether on a device."""

    moments: Times
    thread_ids: npt.NDArray[np.int32]
    sizes: Times
    on_device: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Trace:
    """All complete events of a trace, in order of their starts (the longer first where equal).

    Attributes:
        source: File name, or ``"live"``.
        n_events: Entries read, of any kind.
        n_dropped: Complete events dropped because of impossible times.
        categories: As written in the trace.
        names: Distinct event names, to which ``name_ids`` refer.
        threads: ``(process, thread)`` pairs, to which ``thread_ids`` refer.
        kinds: See the constants in ``kinds``.
        starts: Nanoseconds since ``base_us``.
        ends: As ``starts``.
        correlations: Joins a runtime call with the device work it enqueued; -1 for none.
        devices: Device index of device work; -1 elsewhere.
        streams: Stream of device work; -1 elsewhere.
        sizes: Bytes that a copy moved; -1 if unknown.
        occupancies: Estimated achieved occupancy of a kernel, from 0 to 1; NaN if unknown.
        blocks_per_sm: Thread blocks of a kernel ÷ multiprocessors of the device; NaN if unknown.
        details: Arguments of operators and kernels that are analyzed.
        base_us: Start of the first event, in the trace's own microseconds.
        allocations: Allocations of host and device memory; empty unless the profiler recorded them.
    """

    source: str
    origin: Origin
    n_events: int
    n_dropped: int
    categories: frozenset[str]
    names: tuple[str, ...]
    threads: tuple[tuple[Any, Any], ...]
    kinds: npt.NDArray[np.uint8]
    name_ids: npt.NDArray[np.int32]
    thread_ids: npt.NDArray[np.int32]
    starts: Times
    ends: Times
    correlations: Times
    devices: npt.NDArray[np.int32]
    streams: npt.NDArray[np.int32]
    sizes: Times
    occupancies: npt.NDArray[np.float32]
    blocks_per_sm: npt.NDArray[np.float32]
    details: DetailsByRow
    base_us: float
    allocations: Allocations

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def durations(self) -> Times:
        """Nanoseconds of each row."""
        return self.ends - self.starts

    @cached_property
    def _rows_by_kind(self) -> dict[int, Rows]:
        return {kind: np.flatnonzero(self.kinds == kind) for kind in range(UNKNOWN_DEVICE + 1)}

    def rows(self, *kinds: int) -> Rows:
        """Return the rows of any of the kinds, in order."""
        if len(kinds) == 1:
            return self._rows_by_kind[kinds[0]]
        return np.sort(np.concatenate([self._rows_by_kind[kind] for kind in kinds]))

    def rows_named(self, rows: Rows, matches: Callable[[str], object]) -> Rows:
        """Return the rows whose name ``matches`` accepts; it is called once per name."""
        flags = np.zeros(len(self.names), dtype=np.bool_)
        ids = self.name_ids[rows]
        for name_id in np.flatnonzero(np.bincount(ids, minlength=len(flags))).tolist():
            flags[name_id] = bool(matches(self.names[name_id]))
        return rows[flags[ids]]

    def intervals(self, rows: Rows) -> Intervals:
        """Return when any of the rows was running."""
        return Intervals(self.starts[rows], self.ends[rows])

    def name(self, row: int) -> str:
        """Return the name of a row."""
        text: str = self.names[self.name_ids[row]]
        return text

    @cached_property
    def span(self) -> tuple[int, int]:
        """From the first start to the last end; (0, 0) for an empty trace."""
        return (int(self.starts.min()), int(self.ends.max())) if len(self) else (0, 0)
