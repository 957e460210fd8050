"""Collectives: their kinds, sizes, ranks, and exposed time, in which nothing is computed."""

import dataclasses
import math
import re
import sys
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_perf.records import CollectiveTime, Communication, ShardTraffic

from .columns import Details
from .intervals import SECOND, Intervals, Times
from .kinds import ANNOTATION, COLLECTIVE_PREFIXES, OPERATOR
from .nesting import Rows
from .phases import Phases
from .syncs import costly_waits
from .timeline import Timeline, trees_by_thread

SMALL_BYTES: Final = 1 << 20
N_ROWS: Final = 16
SYMMETRIC: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Collectives that end on all ranks at nearly the same time, because no rank can leave before all have arrived."""

_HIDDEN_FRACTION: Final = 0.5
_TYPE_BYTES: Final = {
    "float": 4, "double": 8, "half": 2, "c10::half": 2, "c10::bfloat16": 2, "bfloat16": 2, "int": 4, "long": 8,
    "long int": 8, "long long": 8, "char": 1, "signed char": 1, "unsigned char": 1, "byte": 1, "bool": 1, "short": 2,
}  # fmt: skip
# The first that is part of a name without separators.
_KINDS: Final = (
    ("allreduce", "all_reduce"), ("reducescatter", "reduce_scatter"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("sendrecv", "send_recv"),
    ("gather", "gather"), ("scatter", "scatter"), ("reduce", "reduce"), ("send", "send_recv"), ("recv", "send_recv"),
)  # fmt: skip
_SEPARATORS: Final = re.compile(r"[^a-z]")
_CALL_PREFIXES: Final = tuple(prefix for prefix in COLLECTIVE_PREFIXES if re.fullmatch(r"\w+:", prefix))
_SHARDED_NAMES: Final = ("FSDP::", "FullyShardedDataParallel", "fsdp::")


def collective_kind(name: str) -> str:
    """Return the kind by the name of a kernel, an annotation or an operator; ``other`` if it is unknown."""
    plain = _SEPARATORS.sub("", name.lower())
    return next((kind for part, kind in _KINDS if part in plain), "other")


def bus_factor(kind: str, n_ranks: int) -> float:
    """Return the factor from size ÷ time to bus bandwidth (nccl-tests, doc/PERFORMANCE.md, "Summary")."""
    if kind == "all_reduce":
        return 2 * (n_ranks - 1) / n_ranks
    return (n_ranks - 1) / n_ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


class Request(NamedTuple):
    """A collective that the host requested; None and -1 if unknown."""

    kind: str | None = None
    size: int = -1
    group: str = ""
    group_size: int = -1


@dataclasses.dataclass(frozen=True)
class Collectives:
    """The collectives of a trace, in time order.

    Attributes:
        rows: Kernels; in a trace without device, the work of the backend's threads.
        kinds: See ``collective_kind``.
        sizes: Bytes as nccl-tests count them (see ``records.CollectiveTime``); -1 if unknown.
        groups: Process groups, by their ranks; empty if unknown.
        group_sizes: Ranks; -1 if unknown.
        requested_at: When the host requested it.
        exposed: Nanoseconds in which nothing was computed.
    """

    rows: Rows
    kinds: tuple[str, ...]
    sizes: Times
    groups: tuple[str, ...]
    group_sizes: Times
    requested_at: Times
    exposed: Times


_MOST_RANKS, _MOST_BYTES = 2**24, 2**60
"""Larger numbers of one collective count as unknown."""


def find_collectives(timeline: Timeline) -> Collectives:
    """Find all collectives of the trace, inside the analyzed span or not."""
    trace = timeline.trace
    rows = timeline.communication_rows
    if len(rows):
        requested_at, requests = _requests_of_kernels(timeline, rows)
    elif not timeline.has_device_work:
        rows, requested_at, requests = _host_collectives(timeline)
    else:
        requested_at, requests = np.empty(0, dtype=np.int64), []
    world = trace.origin.world_size
    found = []
    for row, one in zip(rows.tolist(), requests, strict=True):
        own = _request_in(trace.details.get(row), None)
        kind = one.kind or own.kind or collective_kind(trace.name(row))
        group_size = next((n for n in (own.group_size, one.group_size, world or -1) if 0 < n <= _MOST_RANKS), -1)
        size = own.size if own.size >= 0 else one.size
        if kind == "all_gather" and size >= 0:  # the trace contains the size of one rank's input
            size = size * group_size if group_size > 0 else -1
        found.append((kind, size if -1 <= size <= _MOST_BYTES else -1, own.group or one.group, group_size))
    computing = timeline.computing
    return Collectives(
        rows=rows,
        kinds=tuple(kind for kind, *_ in found),
        sizes=np.array([size for _, size, *_ in found], dtype=np.int64),
        groups=tuple(group for *_, group, _ in found),
        group_sizes=np.array([n for *_, n in found], dtype=np.int64),
        requested_at=requested_at,
        exposed=trace.durations[rows] - computing.covered(trace.starts[rows], trace.ends[rows]),
    )


def _requests_of_kernels(timeline: Timeline, rows: Rows) -> tuple[Times, list[Request]]:
    """Return when each kernel was launched, and its request by annotations and operators around the launch."""
    trace, launches = timeline.trace, timeline.launches
    position = np.searchsorted(launches.device_rows, rows)
    requested_at = launches.times(trace)[position]
    calls = launches.runtime_rows[position]
    notes = trace.rows_named(trace.rows(ANNOTATION, OPERATOR), lambda name: name.startswith(COLLECTIVE_PREFIXES))
    requests = [Request()] * len(rows)
    for thread, host in trees_by_thread(trace, notes).items():
        known: dict[int, Request] = {}
        mine = np.flatnonzero((calls >= 0) & (trace.thread_ids[np.maximum(calls, 0)] == thread))
        for i, inner in zip(mine.tolist(), host.tree.innermost(requested_at[mine]).tolist(), strict=True):
            if inner < 0:
                continue
            if inner not in known:
                chain = [inner]
                while (parent := int(host.tree.parents[chain[-1]])) >= 0:
                    chain.append(parent)
                known[inner] = _merged_request(timeline, host.rows[chain])
            requests[i] = known[inner]
    return requested_at, requests


def _merged_request(timeline: Timeline, rows: Rows) -> Request:
    """Merge the details of nested annotations of one collective; the innermost comes first."""
    trace = timeline.trace
    noted = [_request_in(trace.details.get(row), trace.name(row)) for row in rows.tolist()]
    return Request(
        next((one.kind for one in noted if one.kind), None),
        next((one.size for one in noted if one.size >= 0), -1),
        next((one.group for one in noted if one.group), ""),
        next((one.group_size for one in noted if one.group_size > 0), -1),
    )


def _request_in(details: Details | None, name: str | None) -> Request:
    """Return the request by the details of one event, and by its name unless it is a kernel's."""
    kind = collective_kind(name) if name is not None else "other"
    if details is None:
        return Request(kind if kind != "other" else None)
    if isinstance(details.collective, str) and kind == "other":
        kind = collective_kind(details.collective)
    group_size = details.group_size if type(details.group_size) is int else -1
    # Interned, because the logs of all ranks contain it many times.
    group = sys.intern(details.group_ranks) if isinstance(details.group_ranks, str) else ""
    if name is not None and name.startswith("c10d::"):  # its first input is the output
        return Request(kind if kind != "other" else None, -1, group, _shard_count(kind, details))
    return Request(kind if kind != "other" else None, _bytes(details), group, group_size)


def _shard_count(kind: str, details: Details) -> int:
    """Return the ranks of an all-gather or reduce-scatter by the ratio of its two sides; -1 if unknown."""
    sides = [shape[0] for shape in _list(details.shapes)[:2] if isinstance(shape, list) and len(shape) == 1]
    if kind not in ("all_gather", "reduce_scatter") or len(sides) < 2 or any(type(n) is not int for n in sides):
        return -1
    small, large = sorted(sides)
    return large // small if small > 0 and large % small == 0 else -1


def _bytes(details: Details) -> int:
    if type(details.n_elements) is int and isinstance(details.dtype, str):
        width = _width(details.dtype)
        return details.n_elements * width if width else -1
    total = 0
    for shape, kind in zip(_list(details.shapes or details.old_shapes), _list(details.types), strict=False):
        width = _width(kind) if isinstance(kind, str) else None
        if width and isinstance(shape, list) and shape and all(type(size) is int for size in shape):
            total += width * math.prod(shape)
    return total or -1


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _width(dtype: str) -> int | None:
    plain = dtype.lower()
    return 1 if "float8" in plain else _TYPE_BYTES.get(plain)


def _host_collectives(timeline: Timeline) -> tuple[Rows, Times, list[Request]]:
    """Find collectives of a trace without device: the work of the backend's threads, else the calls themselves.

    gloo implements reduce-scatter by all-reduce; if there are as many calls, they define the kinds and times.
    """
    trace = timeline.trace
    notes = trace.rows(ANNOTATION, OPERATOR)
    rows = trace.rows_named(notes, lambda name: name.startswith(_CALL_PREFIXES))
    if not len(rows):
        rows = trace.rows_named(notes, lambda name: name.startswith("record_param_comms"))
    requests = [_merged_request(timeline, np.array([row])) for row in rows.tolist()]
    calls = trace.rows_named(notes, lambda name: name.startswith("c10d::") and collective_kind(name) != "other")
    if len(calls) != len(rows):
        return rows, trace.starts[rows], requests
    kinds = [collective_kind(trace.name(row)) for row in calls.tolist()]
    requests = [one._replace(kind=kind) for one, kind in zip(requests, kinds, strict=True)]
    return rows, np.minimum(trace.starts[calls], trace.starts[rows]), requests


def describe_communication(timeline: Timeline, collectives: Collectives, phases: Phases) -> Communication | None:
    """Describe the collectives of the analyzed span; None without any."""
    trace, steps = timeline.trace, timeline.steps
    inside = np.flatnonzero(steps.touch(trace, collectives.rows))
    if not len(inside):
        return None
    rows = collectives.rows[inside]
    durations = trace.durations[rows]
    moments = trace.intervals(collectives.rows) & steps.intervals
    exposed = moments - timeline.computing
    total_ns, exposed_ns = moments.total_ns, exposed.total_ns
    sizes = collectives.sizes[inside]
    sizes = sizes[sizes >= 0]
    n_steps = max(steps.n_steps, 1)
    by_name: dict[str, float] = {}
    for i, duration in zip(inside.tolist(), durations.tolist(), strict=True):
        kind = collectives.kinds[i]
        by_name[kind] = by_name.get(kind, 0.0) + duration / SECOND
    return Communication(
        total_s=total_ns / SECOND,
        exposed_s=exposed_ns / SECOND,
        overlap_fraction=1 - exposed_ns / total_ns if total_ns else None,
        n=len(rows),
        n_per_step=len(rows) / n_steps,
        small_per_step=int((sizes < SMALL_BYTES).sum()) / n_steps if len(sizes) else None,
        median_bytes=int(np.median(sizes)) if len(sizes) else None,
        by_name=by_name,
        median_s=float(np.median(durations)) / SECOND,
        collectives=collective_times(
            [collectives.kinds[i] for i in inside.tolist()],
            collectives.group_sizes[inside],
            collectives.sizes[inside],
            durations,
            collectives.exposed[inside],
        ),
        shards=_shard_traffic(timeline, collectives, phases, inside),
        least_exposed_s=_least_exposed_s(timeline, exposed),
    )


def _least_exposed_s(timeline: Timeline, exposed: Intervals) -> float | None:
    steps = timeline.steps
    if not steps.n_steps:
        return None
    if timeline.has_device_work:
        exposed = exposed - costly_waits(timeline)
    return int(exposed.covered(steps.starts, steps.ends).min()) / SECOND


def collective_times(
    kinds: list[str], group_sizes: Times, sizes: Times, durations: Times, exposed: Times
) -> tuple[CollectiveTime, ...]:
    """Group collectives by kind and size, most time first; arguments as in ``Collectives``."""
    found: dict[tuple[str, int, int], list[int]] = {}
    for i, (kind, n, size) in enumerate(zip(kinds, group_sizes.tolist(), sizes.tolist(), strict=True)):
        found.setdefault((kind, n, size.bit_length() if size >= 0 else -1), []).append(i)
    rows = [_collective_time(kind, n, sizes[own], durations[own], exposed[own]) for (kind, n, _), own in found.items()]
    return tuple(sorted(rows, key=lambda row: -row.total_s)[:N_ROWS])


def _collective_time(kind: str, n_ranks: int, sizes: Times, durations: Times, exposed: Times) -> CollectiveTime:
    total = int(durations.sum())
    is_sized = bool((sizes >= 0).all())
    is_moving = is_sized and n_ranks > 1 and total > 0 and kind not in ("barrier", "other")
    return CollectiveTime(
        kind=kind,
        group_size=n_ranks if n_ranks > 0 else None,
        mean_bytes=round(float(sizes.mean())) if is_sized else None,
        n=len(durations),
        total_s=total / SECOND,
        exposed_s=int(exposed.sum()) / SECOND,
        median_s=float(np.median(durations)) / SECOND,
        bus_bytes_per_s=float(sizes.sum()) * bus_factor(kind, n_ranks) / (total / SECOND) if is_moving else None,
    )


def _shard_traffic(
    timeline: Timeline, collectives: Collectives, phases: Phases, inside: Rows
) -> tuple[ShardTraffic, ...]:
    """Describe all-gathers and reduce-scatters of sharded training by the phase in which the host requested them."""
    kinds = {collectives.kinds[i] for i in inside.tolist()}
    is_sharded = any(name.startswith(_SHARDED_NAMES) for name in timeline.trace.names)
    if not ({"all_gather", "reduce_scatter"} <= kinds or (is_sharded and kinds & {"all_gather", "reduce_scatter"})):
        return ()
    durations = timeline.trace.durations[collectives.rows]
    masks: dict[str, npt.NDArray[np.bool_]] = {
        name: phases[name].contains(collectives.requested_at) for name in ("forward", "backward")
    }
    masks["other"] = ~(masks["forward"] | masks["backward"])
    traffic = []
    for kind in ("all_gather", "reduce_scatter"):
        for phase, mask in masks.items():
            own = [i for i in inside.tolist() if collectives.kinds[i] == kind and mask[i]]
            if own:
                hidden = durations[own] - collectives.exposed[own] >= _HIDDEN_FRACTION * durations[own]
                traffic.append(
                    ShardTraffic(
                        kind=kind, phase=phase, n=len(own), total_s=int(durations[own].sum()) / SECOND,
                        exposed_s=int(collectives.exposed[own].sum()) / SECOND, hidden_n=int(hidden.sum()),
                    )
                )  # fmt: skip
    return tuple(traffic)
