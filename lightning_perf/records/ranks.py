"""Comparison of all ranks of a run: the own work of each, and its waiting for others."""

from .base import Record

RANKS_FOLDER = "perf_ranks"
"""Folder beside the session in which the other ranks leave theirs."""

PARTS: tuple[str, ...] = ("data", "compute", "host")
"""A rank's own work by what it is spent on. ``data``: waiting for batches and moving them. ``compute``: forward, the
rank's own part of backward, the optimizer. ``host``: callbacks, logging and the loop itself."""

MAX_FOUND = 12
"""Findings that a rank sends to rank 0: messages stay small, however many ranks there are."""


class RankSummary(Record, frozen=True, kw_only=True):
    """One rank's steady steps.

    Attributes:
        node: Host name of its machine.
        own_s: Mean seconds per step of its own work: the step without what it waited inside collectives.
        own_p50_s: The sum of the medians of its parts, without the loop's own: what it does in a usual step; on a
            device, the median step without what it waited. A rank that is slow in few steps has a high ``own_s``
            and a usual ``own_p50_s``.
        waiting_s: Mean seconds per step that it waited for the other ranks: from its own last gradient to the end of
            backward, in Lightning's own broadcast at each step and, where the host computes, in reductions of
            metrics; None if the first is unknown. ``own_s`` then leaves out all of backward, and of strategies
            that exchange in the middle of forward (FSDP, tensor parallelism) forward and the optimizer as well.
        waiting_n: Steps on which ``waiting_s`` rests.
        parts_s: ``own_s`` by ``PARTS``; ``compute`` is missing if it cannot be separated from waiting.
        wait_share: Share of its steady span spent waiting for data.
        slowest_name: The callback or logger that takes most of its ``host`` time, with the hook; None without any.
        slowest_s: Seconds per step of that one.
        n_batches: Batches of its latest epoch; None before the end of one.
        n_samples: Samples of it; None if batches have no known size.
        n_unused: The most trainable parameters that got no gradient in one backward of the sampled steps; None
            if none was sampled.
        peak_bytes: Peak of its device's memory, of resident memory on a CPU; None when not read.
        found: What its own last diagnosis found, as ``"PD801 thermal-throttling"``, worst first, at most
            ``MAX_FOUND``; empty before one was made.
        found_lines: The line that takes the time, by the text of ``found``; of findings about host time.
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


class MissingRank(Record, frozen=True, kw_only=True):
    """A rank of which nothing, or nothing recent, is known, and why."""

    rank: int
    reason: str


class Ranks(Record, frozen=True, kw_only=True):
    """Figures of all ranks together.

    Attributes:
        step_mean_s: Mean over the ranks of the mean step.
        step_max_s: The slowest rank's.
        data_wait_share_mean: Mean over the ranks of the share of time spent waiting for data.
        data_wait_share_max: The highest of any rank.
        world_size: Ranks of the run; None in a session of an older version.
        collected_s: What bringing them together took on rank 0, waiting for late ranks included.
    """

    step_mean_s: float
    step_max_s: float
    data_wait_share_mean: float
    data_wait_share_max: float
    world_size: int | None = None
    summaries: tuple[RankSummary, ...] = ()
    missing: tuple[MissingRank, ...] = ()
    collected_s: float | None = None


def together(
    summaries: tuple[RankSummary, ...],
    world_size: int,
    missing: tuple[MissingRank, ...] = (),
    collected_s: float | None = None,
) -> Ranks | None:
    """Combine the summaries of the ranks that reported; return None without any.

    Args:
        summaries: In any order; the last one of a rank counts.
        world_size: Ranks of the run.
        missing: The others.
        collected_s: As for ``Ranks``.
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
