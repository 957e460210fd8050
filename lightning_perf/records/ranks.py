"""Comparison of all ranks of a run: each rank's own work, and its waits for others."""

from .base import Record

RANKS_FOLDER = "perf_ranks"
"""Folder beside the session with the sessions of the other ranks."""

PARTS: tuple[str, ...] = ("data", "compute", "host")
"""Parts of a rank's own work. ``data``: data wait and transfer. ``compute``: forward, the rank's own part of backward,
the optimizer. ``host``: callbacks, logging and the loop itself."""

MAX_FOUND = 12
"""Most findings that a rank sends to rank 0, so that messages stay small."""


class RankSummary(Record, frozen=True, kw_only=True):
    """One rank's steady steps.

    Attributes:
        node: Host name of its machine.
        own_s: Mean seconds per step of its own work: the step without waits in collectives.
        own_p50_s: Own work of a typical step: the sum of the medians of its parts without the loop; on a device, the
            median step without waits. A rank that is slow in few steps has a high ``own_s`` but a typical
            ``own_p50_s``.
        waiting_s: Mean seconds per step of waits for other ranks: from its last gradient to the end of backward, in
            Lightning's broadcast in each step and, on a CPU, in reductions of metrics. None if the first is unknown;
            ``own_s`` then excludes backward and, with strategies that communicate within forward (FSDP, tensor
            parallelism), also forward and the optimizer.
        waiting_n: Steps behind ``waiting_s``.
        parts_s: ``own_s`` by ``PARTS``; without ``compute`` if it cannot be separated from waits.
        wait_share: Share of its steady span spent waiting for data.
        slowest_name: The callback or logger that takes most of its ``host`` time, with the hook; None without any.
        slowest_s: Seconds per step of ``slowest_name``.
        n_batches: Batches of its latest complete epoch; None without one.
        n_samples: Samples of that epoch; None if the batch size is unknown.
        n_unused: Most trainable parameters without a gradient after one backward of the sampled steps; None if no step
            was sampled.
        peak_bytes: Peak memory of its device, on a CPU its peak resident memory; None if not read.
        found: Findings of its last diagnosis, as ``"PD801 thermal-throttling"``, worst first, at most ``MAX_FOUND``.
        found_lines: The line that takes the time, by text in ``found``, for findings about host time.
        first_batches: A digest of parts of its first two batches; None if unknown, or if these are equal or hold only
            indices, as then other ranks may have the same.
    """

    rank: int
    node: str
    n_steps: int
    step_s: float
    own_s: float
    own_p50_s: float = 0.0
    waiting_s: float | None = None
    waiting_n: int = 0
    parts_s: dict[str, float] = {}
    wait_share: float = 0.0
    slowest_name: str | None = None
    slowest_s: float = 0.0
    n_batches: int | None = None
    n_samples: int | None = None
    n_unused: int | None = None
    peak_bytes: int | None = None
    found: tuple[str, ...] = ()
    found_lines: dict[str, str] = {}
    first_batches: str | None = None


class MissingRank(Record, frozen=True, kw_only=True):
    """A rank without a (recent) report, and the reason."""

    rank: int
    reason: str


class Ranks(Record, frozen=True, kw_only=True):
    """Figures of all ranks together.

    Attributes:
        step_mean_s: Mean over the ranks of the mean step.
        step_max_s: Mean step of the slowest rank.
        data_wait_share_mean: Mean over the ranks of the share of time spent waiting for data.
        data_wait_share_max: The highest of any rank.
        world_size: Ranks of the run; None in a session of an older version.
        collected_s: Seconds that rank 0 needed to collect the reports, including waits for late ranks.
    """

    step_mean_s: float
    step_max_s: float
    data_wait_share_mean: float
    data_wait_share_max: float
    world_size: int | None = None
    summaries: tuple[RankSummary, ...] = ()
    missing: tuple[MissingRank, ...] = ()
    collected_s: float | None = None


def combine_ranks(
    summaries: tuple[RankSummary, ...],
    world_size: int,
    missing: tuple[MissingRank, ...] = (),
    collected_s: float | None = None,
) -> Ranks | None:
    """Combine the summaries of the ranks that reported, in any order; return None without any.

    If a rank has several summaries, the last one counts. For the other arguments see ``Ranks``.
    """
    by_rank = {summary.rank: summary for summary in summaries}
    if not by_rank:
        return None
    kept = tuple(by_rank[rank] for rank in sorted(by_rank))
    return Ranks(
        step_mean_s=sum(one.step_s for one in kept) / len(kept),
        step_max_s=max(one.step_s for one in kept),
        data_wait_share_mean=sum(one.wait_share for one in kept) / len(kept),
        data_wait_share_max=max(one.wait_share for one in kept),
        world_size=world_size,
        summaries=kept,
        missing=missing,
        collected_s=collected_s,
    )


def ranks_by_finding(summaries: tuple[RankSummary, ...]) -> dict[str, tuple[int, ...]]:
    """Return the ranks by finding; findings of the fewest ranks first."""
    found: dict[str, list[int]] = {}
    for one in summaries:
        for text in one.found:
            found.setdefault(text, []).append(one.rank)
    return {text: tuple(ranks) for text, ranks in sorted(found.items(), key=lambda item: (len(item[1]), item[0]))}
