"""Collectives in profiler traces of one or several ranks."""

from .base import Record


class CollectiveTime(Record, frozen=True, kw_only=True):
    """The collectives of one kind and about one size.

    Attributes:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``, ``all_to_all``,
            ``send_recv``, ``gather``, ``scatter``, ``barrier`` or ``other``.
        group_size: Ranks in the group; all ranks of the run if unknown; None if that is unknown too.
        mean_bytes: Size S as in nccl-tests: the output of an all-gather, the input of a reduce-scatter and of other
            collectives. None if the trace has no sizes. Sizes of one record are within one power of two.
        exposed_s: The part of ``total_s`` in which nothing was computed.
        bus_bytes_per_s: Bus bandwidth as defined by nccl-tests: S ÷ time, times 2(n-1)/n for an all-reduce, (n-1)/n for
            an all-gather, a reduce-scatter and an all-to-all, 1 for others. From one rank's trace, the time includes
            waits for ranks that arrive later, so this is a lower bound; from several traces, it starts at the arrival
            of the last rank. None without the size or the group's size.
    """

    kind: str
    group_size: int | None
    mean_bytes: int | None
    n: int
    total_s: float
    exposed_s: float
    median_s: float
    bus_bytes_per_s: float | None = None


class ShardTraffic(Record, frozen=True, kw_only=True):
    """Collectives of sharded training (FSDP) in one phase, and how much of them is hidden behind compute.

    Attributes:
        kind: ``all_gather`` (of a layer's parameters, before it computes) or ``reduce_scatter`` (of its gradients,
            after it).
        phase: Phase of the host at the call: ``forward``, ``backward``, or ``other`` if unknown.
        exposed_s: The part of ``total_s`` in which nothing was computed.
        hidden_n: Collectives with at least half of their time hidden behind compute: prefetched in time.
    """

    kind: str
    phase: str
    n: int
    total_s: float
    exposed_s: float
    hidden_n: int


class TraceRank(Record, frozen=True, kw_only=True):
    """One rank in the traces of several; times are of the mean matched step.

    Attributes:
        source: Its trace.
        own_s: The step without ``waiting_s``.
        waiting_s: Exposed time in collectives before the last rank arrived. Compute that overlaps with a collective is
            subtracted from the wait first, so this is a lower bound.
        transfer_s: Time in collectives after the last rank arrived, exposed or not.
        parts_s: ``own_s`` by ``data`` (fetches without compute at the same time), ``compute`` (of the device; on a CPU,
            of operators), ``communication`` (exposed, after the last rank arrived) and ``host`` (the rest).
        last_fraction: Fraction of the collectives at which it arrived last.
        straggler_share: Share of the step that the median of the other ranks waited, exposed, at collectives at which
            this rank arrived last. The sum over all ranks is the cost of waiting for stragglers.
        clock_offset_s: Its clock minus the ranks' median clock, from the ends of collectives, which are nearly
            simultaneous; None if no collective has all ranks.
    """

    rank: int
    source: str
    step_s: float
    own_s: float
    waiting_s: float
    transfer_s: float
    parts_s: dict[str, float] = {}
    last_fraction: float = 0.0
    straggler_share: float = 0.0
    clock_offset_s: float | None = None


class TraceRanks(Record, frozen=True, kw_only=True):
    """Traces of several ranks of one run, recorded in the same steps, their collectives matched.

    Attributes:
        world_size: Ranks of the run; None if unknown.
        ranks: The ranks whose traces were read, by rank.
        n_steps: Steps that all of them recorded (1 without steps).
        n_matched: Collectives found on all traced ranks of their group.
        n_unmatched: Other collectives, on the rank with most of them.
        clock_spread_s: Accuracy of the aligned clocks: the median distance of the ends of a collective from their
            median. None if clocks were not aligned.
        collectives: By kind and size, timed from the last rank's arrival; ``exposed_s`` is the median rank's.
    """

    world_size: int | None
    ranks: tuple[TraceRank, ...]
    n_steps: int
    n_matched: int
    n_unmatched: int = 0
    clock_spread_s: float | None = None
    collectives: tuple[CollectiveTime, ...] = ()
