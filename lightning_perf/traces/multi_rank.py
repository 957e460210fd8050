"""Compare the traces of several ranks: match collectives, align clocks, and find late ranks."""

import dataclasses
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_perf.records import CollectiveTime, TraceRank, TraceRanks

from .collectives import SYMMETRIC, Collectives, collective_times
from .intervals import SECOND, Intervals, Times
from .timeline import Timeline

# In other kinds, not all ranks make the same calls.
_MATCHED_KINDS: Final = SYMMETRIC | {"broadcast", "reduce"}
# Kinds in which all ranks pass the same number of bytes.
_EQUAL_SIZES: Final = frozenset({"all_reduce", "broadcast", "reduce"})
# Traces that share fewer collectives are of different runs, or of ranks that do different work.
_MIN_MATCHED_FRACTION: Final = 0.5
# A collective ends on all ranks at nearly the same time. Larger differences, relative to its duration and to the time
# that ranks seem to wait, mean that different collectives were matched.
_MAX_SPREAD_FRACTION: Final = 0.25


class CollectiveKey(NamedTuple):
    """Identifies a collective on all ranks: the k-th of its kind and size in the step and group."""

    step: str
    group: str
    kind: str
    size: int
    k: int


class StepTime(NamedTuple):
    """Nanoseconds of one step: in total, waiting for data, computing, and in exposed collectives."""

    total: int
    data: int
    computing: int
    exposed: int


@dataclasses.dataclass(frozen=True)
class RankLog:
    """The part of one rank's trace that is compared with others, small enough for a thousand ranks.

    Attributes:
        begin_ns: Start of the trace, in nanoseconds by its own clock.
        steps: Times of the steps, by name.
        keys: Identities of the collectives, in the order of the arrays below.
        starts: Nanoseconds by the trace's own clock.
        ends: As ``starts``.
        exposed: Nanoseconds in which nothing was computed.
        sizes: Bytes; -1 if unknown.
        group_sizes: Ranks of the process group; -1 if unknown.
    """

    source: str
    rank: int
    world_size: int | None
    begin_ns: int
    steps: dict[str, StepTime]
    keys: tuple[CollectiveKey, ...]
    starts: Times
    ends: Times
    exposed: Times
    sizes: Times
    group_sizes: Times


def log_rank(timeline: Timeline, collectives: Collectives) -> RankLog | None:
    """Return the data to compare with other ranks; None if the trace does not contain its rank."""
    trace, steps = timeline.trace, timeline.steps
    if trace.origin.rank is None:
        return None
    names = steps.names or ("trace",)
    if steps.n_steps:
        step_of = steps.host_step_of(collectives.requested_at)
    else:
        step_of = np.zeros(len(collectives.rows), dtype=np.int64)
    kept, keys = [], []
    seen: dict[tuple[str, str, str, int], int] = {}
    for i, (step, kind, group) in enumerate(zip(step_of.tolist(), collectives.kinds, collectives.groups, strict=True)):
        if step < 0 or kind not in _MATCHED_KINDS:
            continue
        place = (names[step], group, kind, int(collectives.sizes[i]) if kind in _EQUAL_SIZES else -1)
        seen[place] = k = seen.get(place, -1) + 1
        kept.append(i)
        keys.append(CollectiveKey(*place, k))
    begin_ns = trace.origin.base_ns + round(trace.base_us * 1000)
    rows = collectives.rows[kept]
    return RankLog(
        source=trace.source, rank=trace.origin.rank, world_size=trace.origin.world_size, begin_ns=begin_ns,
        steps=_steps(timeline, collectives, names), keys=tuple(keys), starts=trace.starts[rows] + begin_ns,
        ends=trace.ends[rows] + begin_ns, exposed=collectives.exposed[kept], sizes=collectives.sizes[kept],
        group_sizes=collectives.group_sizes[kept],
    )  # fmt: skip


def _steps(timeline: Timeline, collectives: Collectives, names: tuple[str, ...]) -> dict[str, StepTime]:
    steps = timeline.steps
    communication = timeline.trace.intervals(collectives.rows)
    if timeline.has_device_work:
        exposed = communication - timeline.compute - timeline.memcpy
        data = timeline.loader - timeline.device
        computing = timeline.device - exposed
    else:
        data = timeline.loader - timeline.computing
        computing = timeline.computing
        exposed = communication - computing - data

    def inside(moments: Intervals) -> list[int]:
        lengths: list[int] = moments.covered(steps.starts, steps.ends).tolist()
        return lengths

    spans = (steps.ends - steps.starts).tolist()
    figures = zip(spans, inside(data), inside(computing), inside(exposed), strict=True)
    return dict(zip(names, map(StepTime._make, figures), strict=True))


def compare_ranks(logs: Sequence[RankLog]) -> TraceRanks | None:
    """Compare the traces of several ranks of one run.

    A collective ends everywhere at the same time, so a rank that spent longer in it than the fastest rank had arrived
    earlier by the difference, whatever the clocks say.

    Returns:
        None if fewer than two ranks share most of their collectives, or if these do not end together: the traces are
        not of one run, recorded different steps, or miss events.
    """
    logs = sorted(logs, key=lambda log: log.rank)
    steps = [name for name in logs[0].steps if all(name in log.steps for log in logs)] if logs else []
    if len(logs) < 2 or not steps:
        return None
    matched, n_unmatched = _match(logs, set(steps))
    most = max(sum(key.step in steps for key in log.keys) for log in logs)
    if not matched or (most - n_unmatched) < _MIN_MATCHED_FRACTION * most:
        return None
    n_steps = len(steps)
    exposed_ns = np.array([sum(log.steps[name].exposed for name in steps) for log in logs], dtype=np.float64)
    waits = _Waits(logs, matched, exposed_ns)
    offsets, spread = _clocks(logs, matched)
    if spread is not None and spread > max(_MAX_SPREAD_FRACTION * waits.median_ns, waits.mean_ns):
        return None
    step_ns = float(np.mean([log.steps[name].total for log in logs for name in steps])) or 1.0
    ranks = []
    for i, log in enumerate(logs):
        shared = (log.steps[name] for name in steps)
        span, data, computing, exposed = (sum(times) / n_steps for times in zip(*shared, strict=True))
        waiting = float(waits.waiting[i]) / n_steps
        parts = {"data": data, "compute": computing, "communication": exposed - waiting}
        parts["host"] = max(0.0, span - waiting - sum(parts.values()))
        ranks.append(
            TraceRank(
                rank=log.rank, source=log.source, step_s=span / SECOND, own_s=(span - waiting) / SECOND,
                waiting_s=waiting / SECOND, transfer_s=float(waits.transfer[i]) / n_steps / SECOND,
                parts_s={name: value / SECOND for name, value in parts.items()},
                last_fraction=float(waits.last_n[i]) / max(int(waits.taken_part[i]), 1),
                straggler_share=float(waits.blamed[i]) / n_steps / step_ns,
                clock_offset_s=float(offsets[i]) / SECOND if offsets is not None else None,
            )
        )  # fmt: skip
    world = {log.world_size for log in logs}
    return TraceRanks(
        world_size=world.pop() if len(world) == 1 else None, ranks=tuple(ranks), n_steps=n_steps,
        n_matched=len(matched), n_unmatched=n_unmatched,
        clock_spread_s=spread / SECOND if spread is not None else None, collectives=waits.collectives(logs, matched),
    )  # fmt: skip


class _Match(NamedTuple):
    """One collective: the logs (``ranks``) that have it, and ``places``, each a log and the position in it."""

    kind: str
    ranks: npt.NDArray[np.int64]
    places: list[tuple[int, int]]


def _match(logs: Sequence[RankLog], steps: set[str]) -> tuple[list[_Match], int]:
    """Return the collectives found on every rank of their group, and the most unmatched ones of any rank.

    A rank belongs to the groups in its trace. If ranks differ in the number of a kind in a step, events are missing,
    and that kind is not matched in the step.
    """
    found: dict[CollectiveKey, list[tuple[int, int]]] = {}
    members: dict[str, set[int]] = {}
    for i, log in enumerate(logs):
        for row, key in enumerate(log.keys):
            if key.step in steps:
                found.setdefault(key, []).append((i, row))
                members.setdefault(key.group, set()).add(i)
    incomplete = {key[:4] for key, places in found.items() if len(places) < len(members[key.group])}
    matched, n_unmatched = [], np.zeros(len(logs), dtype=np.int64)
    for key, places in found.items():
        if key[:4] in incomplete:
            n_unmatched[[i for i, _ in places]] += 1
        elif len(places) > 1:
            matched.append(_Match(key.kind, np.array([i for i, _ in places], dtype=np.int64), places))
    return matched, int(n_unmatched.max())


class _Waits:
    """Waiting in the matched collectives.

    Attributes:
        waiting: Nanoseconds that each rank waited in exposed collectives.
        transfer: Nanoseconds that its collectives took once the last rank had arrived.
        blamed: Nanoseconds that the others waited for it.
        last_n: Collectives in which it was the last to arrive.
        taken_part: Collectives in which it took part.
        median_ns: Median over the collectives of their longest duration on any rank.
        mean_ns: Mean waiting time of a rank per collective, hidden or not.
    """

    def __init__(self, logs: Sequence[RankLog], matched: Sequence[_Match], exposed_ns: npt.NDArray[np.float64]) -> None:
        n = len(logs)
        self.waiting, self.transfer, self.blamed = (np.zeros(n) for _ in range(3))
        self.last_n, self.taken_part = (np.zeros(n, dtype=np.int64) for _ in range(2))
        self._transfer_ns = np.zeros(len(matched), dtype=np.int64)
        self._exposed_ns = np.zeros(len(matched), dtype=np.int64)
        durations = [log.ends - log.starts for log in logs]
        waits, longest, total_ns = [], [], 0.0
        for j, one in enumerate(matched):
            took = np.array([durations[i][row] for i, row in one.places], dtype=np.int64)
            exposed = np.array([logs[i].exposed[row] for i, row in one.places], dtype=np.int64)
            least, last = int(took.min()), int(took.argmin())
            waiting = np.clip(exposed - least, 0, took - least)
            waits.append((waiting, last))
            longest.append(int(took.max()))
            total_ns += float((took - least).mean())
            self.waiting[one.ranks] += waiting
            self.transfer[one.ranks] += least
            self.taken_part[one.ranks] += 1
            self.last_n[one.ranks[last]] += 1
            self._transfer_ns[j], self._exposed_ns[j] = least, int(np.median(np.minimum(exposed, least)))
        self.median_ns, self.mean_ns = float(np.median(longest)), total_ns / len(matched)
        # Collectives of several threads or streams run at the same time, and so does waiting in them.
        part = np.minimum(1.0, exposed_ns / np.maximum(self.waiting, 1.0))
        self.waiting *= part
        for one, (waiting, last) in zip(matched, waits, strict=True):
            self.blamed[one.ranks[last]] += float(np.median(np.delete(waiting * part[one.ranks], last)))

    def collectives(self, logs: Sequence[RankLog], matched: Sequence[_Match]) -> tuple[CollectiveTime, ...]:
        """Return the collectives by kind and mean size, timed from the last rank's arrival."""
        sizes, groups = [], []
        for one in matched:
            own = [int(logs[i].sizes[row]) for i, row in one.places]
            sizes.append(round(sum(own) / len(own)) if min(own) >= 0 else -1)
            first, row = one.places[0]
            groups.append(int(logs[first].group_sizes[row]))
        kinds = [one.kind for one in matched]
        return collective_times(kinds, np.array(groups, dtype=np.int64), np.array(sizes, dtype=np.int64),
                                self._transfer_ns, self._exposed_ns)  # fmt: skip


def _clocks(logs: Sequence[RankLog], matched: Sequence[_Match]) -> tuple[npt.NDArray[np.float64] | None, float | None]:
    """Return each clock's offset from the ranks' median, and the spread of the ends after correction.

    Only collectives of all ranks are used that no rank can leave before all have arrived.
    """
    whole = [one for one in matched if len(one.ranks) == len(logs) and one.kind in SYMMETRIC]
    if not whole:
        return None, None
    base = min(log.begin_ns for log in logs)  # nanoseconds since 1970 would not fit a float
    ends = np.array([[int(logs[i].ends[row]) - base for i, row in one.places] for one in whole], dtype=np.float64)
    away = ends - np.median(ends, axis=1, keepdims=True)
    offsets = np.median(away, axis=0)
    return offsets, float(np.median(np.abs(away - offsets)))
