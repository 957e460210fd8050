"""Compare the first batches of workers with an ``IterableDataset``, and of ranks: each must have samples of its own."""

import hashlib
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

import msgspec
import torch

from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.sampled_steps.fixed_tensors import part_of
from lightning_perf.records import Session

_MOST_WORKERS = 16
_N_TENSORS = 16  # of a batch, that are compared
_N_FOR_RANKS = 2  # batches that ranks compare: a dataset whose samples are all the same has two equal ones


class FirstBatchesProbe(Probe):
    """Parts of the first batches: one of each worker, which a loader takes in turn, and two on each rank.

    The first worker's second batch shows whether all of its samples are the same: then other workers' are, too.
    """

    name = "first_batches"
    stages = ("fit",)
    after = ("settings",)

    def __init__(self, run: RunContext) -> None:
        self._n_workers = 0
        self._is_ranked = False
        self._steps: tuple[int, ...] = ()
        self._firsts: list[list[torch.Tensor]] = []
        self._has_data = False  # more than a vector of integers, which may be indices
        self._n_equal: int | None = None
        self._digest: str | None = None

    def loops_ready(self, run: RunContext) -> None:
        loaders = [one for one in run.settings.loaders if one.stage == "train"]
        if len(loaders) == 1 and loaders[0].is_iterable and (loaders[0].num_workers or 0) > 1:
            self._n_workers = min(loaders[0].num_workers or 0, _MOST_WORKERS)
            self._steps = (*range(self._n_workers), loaders[0].num_workers or 0)
        self._is_ranked = run.settings.trainer.world_size > 1
        if self._is_ranked and not self._steps:
            self._steps = tuple(range(_N_FOR_RANKS))

    @property
    def next_step(self) -> int:
        return self._steps[len(self._firsts)] if len(self._firsts) < len(self._steps) else NEVER

    def step_begins(self, batch: Any) -> None:
        with plain.without_overrides(), torch.no_grad():
            tensors = plain.tensors_in(batch, left=plain.search_limit())
            pairs = ((one, part_of(one)) for one in tensors if one.layout is torch.strided)
            known = [(one, part.clone()) for one, part in islice(pairs, _N_TENSORS) if part is not None]
            self._firsts.append([part for _, part in known])
            self._has_data |= any(one.dim() > 1 or one.is_floating_point() for one, _ in known)

    def epoch_ends(self) -> None:
        self._compare()
        self._steps = ()  # without a batch of each worker, the next one would be of the first worker again
        self._firsts.clear()

    def digest(self) -> str | None:
        """Return a digest of this rank's first two batches; None if unknown, or if other ranks may have equal ones."""
        self._compare()
        return self._digest

    def part(self, session: Session) -> Mapping[str, Any]:
        self._compare()
        if self._n_equal is None:
            return {}
        settings, replace = session.settings, msgspec.structs.replace
        n = self._n_equal
        loaders = (replace(one, n_equal_workers=n) if one.stage == "train" else one for one in settings.loaders)
        return {"settings": replace(settings, loaders=tuple(loaders))}

    def _compare(self) -> None:
        if not self._steps or len(self._firsts) < len(self._steps):
            return
        firsts, self._firsts, self._steps = self._firsts, [], ()
        with plain.without_overrides(), torch.no_grad():
            firsts = [[one.cpu() for one in first] for first in firsts]
            if self._n_workers and _n_equal([firsts[0], firsts[-1]]) == 1:
                self._n_equal = _n_equal(firsts[: self._n_workers])
            if self._is_ranked and self._has_data and _n_equal(firsts[:_N_FOR_RANKS]) == 1:
                self._digest = _digest(firsts[:_N_FOR_RANKS])


def _n_equal(firsts: list[list[torch.Tensor]]) -> int | None:
    """Return how many batches equal the first one, itself included; None if that may be chance."""
    first = firsts[0]
    if not any(bool((one != one[0]).any()) for one in first):
        return None
    return sum(
        len(other) == len(first) and all(torch.equal(one, same) for one, same in zip(first, other, strict=True))
        for other in firsts
    )


def _digest(batches: list[list[torch.Tensor]]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for part in chain.from_iterable(batches):
        found.update(f"{part.dtype}{part.numel()}".encode())
        found.update(part.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
