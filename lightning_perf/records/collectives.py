"""Collectives in profiler traces of one or several ranks."""

from .base import Record


class CollectiveTime(Record, frozen=True, kw_only=True):
    """The collectives of one kind and about one size.

    Attributes:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``, ``all_to_all``,
            ``send_recv``, ``gather``, ``scatter``, ``barrier`` or ``other``.
        group_size: Ranks that take part; all ranks of the run if the group's are unknown, None if both are.
        mean_bytes: S of nccl-tests: of an all-gather what each rank ends with, of a reduce-scatter what each begins
            with, of the others what each passes in. None if the trace does not give sizes. Sizes of one row lie
            within one power of two.
        exposed_s: Of these, the seconds in which nothing was computed.
        bus_bytes_per_s: Bus bandwidth as nccl-tests define it: S ÷ time, times 2(n-1)/n for an all-reduce, (n-1)/n for
            an all-gather, a reduce-scatter and an all-to-all, 1 for the others. On one rank the time includes waiting
            for ranks that come later, so this is the least that was achieved; over several ranks' traces it is counted
            from the last rank's arrival. None without sizes or the group's size.
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
    """Parameters and gradients that sharded training (FSDP) exchanges in one phase, and how much of it is hidden.

    Attributes:
        kind: ``all_gather`` (parameters are fetched before a layer computes) or ``reduce_scatter`` (gradients are given
            away after it).
        phase: ``forward`` or ``backward``: what the host was in when it asked; ``other`` where that is not known.
        exposed_s: Of these, the seconds in which nothing was computed: computing waited for them.
        hidden_n: How many had at least half of their time hidden behind computing: prefetched in time.
    """

    kind: str
    phase: str
    n: int
    total_s: float
    exposed_s: float
    hidden_n: int


class TraceRank(Record, frozen=True, kw_only=True):
    """One rank in the traces of several, seconds of the mean matched step.

    Attributes:
        source: Its trace.
        own_s: The step without ``waiting_s``.
        waiting_s: In collectives before the last rank had arrived, as far as no computing hid it (what computing hides
            of a collective is taken off the waiting first: this is the least that waiting cost).
        transfer_s: In collectives after that, hidden or not.
        parts_s: ``own_s`` by ``data`` (fetches with nothing computed meanwhile), ``compute`` (on the device, on a CPU
            in operators), ``communication`` (exposed, after the last rank's arrival) and ``host`` (what is left).
        last_fraction: Share of the collectives at which it arrived last.
        straggler_share: Share of the step that the median of the other ranks waited, exposed, at collectives at which
            this rank arrived last. Over all ranks it adds up to what waiting for stragglers costs.
        clock_offset_s: Its clock minus the ranks' median clock, from the ends of collectives, which are nearly the same
            moment everywhere; None if no collective has all ranks.
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
        world_size: Ranks of the run; None if the traces do not tell.
        ranks: Those whose traces were read, by rank.
        n_steps: Steps that all of them recorded (1 where they have no steps).
        n_matched: Collectives that were found on all ranks that take part and were traced.
        n_unmatched: Collectives, on the rank with most of them, that were not.
        clock_spread_s: Median distance of the aligned ends of a collective from their median: what the alignment of
            clocks, and so each rank's arrival, is good for. None where clocks were not aligned.
        collectives: By kind and size, seconds from the last rank's arrival; ``exposed_s`` is the median rank's.
    """

    world_size: int | None
    ranks: tuple[TraceRank, ...]
    n_steps: int
    n_matched: int
    n_unmatched: int = 0
    clock_spread_s: float | None = None
    collectives: tuple[CollectiveTime, ...] = ()
