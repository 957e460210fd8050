"""Exchange the ranks' summaries, and combine them on rank 0.

Each rank puts a small summary into the key-value store of its process group and continues; rank 0 reads the summaries,
and waits for late ranks for a limited time. So a rank that died, hangs or measures nothing neither blocks a report nor
is blocked by one.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch.distributed as dist

from lightning_perf.records import MissingRank, Ranks, RankSummary, combine_ranks

_decode = msgspec.json.Decoder(RankSummary | None).decode  # built once: building it in two threads at once crashes

_POLL_S = 0.002

_runs = itertools.count()
"""Runs of this process. Every rank runs the same script, so the same run has the same number everywhere."""


class Exchange:
    """Exchange of the ranks' summaries through a ``torch.distributed.Store`` that all ranks share."""

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._now_s = now_s
        self._sleep = sleep
        self._round = 0
        self._known: dict[int, RankSummary] = {}

    def share(self, summary: RankSummary | None, limit_s: float) -> Ranks | None:
        """Send this rank's summary, and return the record of the ranks; each rank must call it equally often.

        Args:
            summary: None if this rank measured nothing.
            limit_s: Seconds that rank 0 waits for the others.

        Returns:
            All ranks on rank 0, only this rank elsewhere; None without any summary.
        """
        begin = self._now_s()
        key = self._key(self._rank)
        self._store.set(key, msgspec.json.encode(summary).decode())
        # The last round's key stays: rank 0 may still have to read it, and would wait for a deleted key.
        if self._round > 1:
            self._store.delete_key(self._key(self._rank, self._round - 2))
        if self._rank != 0:
            self._round += 1
            return None if summary is None else combine_ranks((summary,), self._world_size)
        reported = self._wait(begin + limit_s)
        missing: list[MissingRank] = []
        for rank, encoded in zip(reported, self._read([self._key(rank) for rank in reported]), strict=True):
            try:
                found = _decode(encoded)
            except msgspec.DecodeError as error:
                missing.append(MissingRank(rank=rank, reason=f"its report cannot be read: {error}"))
                continue
            if found is None:
                missing.append(MissingRank(rank=rank, reason="it measured nothing"))
            else:
                self._known[rank] = found
        for rank in sorted(set(range(self._world_size)) - set(reported)):
            then = "; figures are of an earlier report" if rank in self._known else ""
            missing.append(MissingRank(rank=rank, reason=f"it did not report within {limit_s:g} s{then}"))
        self._round += 1
        return combine_ranks(tuple(self._known.values()), self._world_size, tuple(missing), self._now_s() - begin)

    def _key(self, rank: int, number: int | None = None) -> str:
        return f"{self._round if number is None else number}/{rank}"

    def _wait(self, until_s: float) -> list[int]:
        """Return the ranks that have reported, once all have or the time is up."""
        keys = [self._key(rank) for rank in range(self._world_size)]
        while not (is_complete := self._store.check(keys)) and self._now_s() < until_s:
            self._sleep(_POLL_S)
        if is_complete:
            return list(range(self._world_size))
        return [rank for rank, key in enumerate(keys) if self._store.check([key])]

    def _read(self, keys: list[str]) -> list[bytes]:
        """Return all values, in one call if possible: one call per rank takes seconds for a thousand ranks."""
        has_more = getattr(self._store, "has_extended_api", None)
        if has_more is not None and has_more() and keys:
            values: list[bytes] = self._store.multi_get(keys)
            return values
        return [self._store.get(key) for key in keys]


def open_exchange(trainer: Any) -> Exchange | None:
    """Return an exchange over the process group's store; None if there is none (other backends).

    Every rank must call it once per run.
    """
    number = next(_runs)
    if not (dist.is_available() and dist.is_initialized()):
        return None
    get_store = getattr(dist.distributed_c10d, "_get_default_store", None)
    if get_store is None:
        return None
    store = dist.PrefixStore(f"lightning_perf/{number}", get_store())  # type: ignore[attr-defined]
    return Exchange(store, trainer.global_rank, trainer.world_size)
