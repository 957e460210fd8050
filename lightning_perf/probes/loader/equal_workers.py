"""Compare the first batches of the workers that read an ``IterableDataset``: each must have samples of its own."""

from collections.abc import Mapping
from itertools import islice
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


class EqualWorkersProbe(Probe):
    """Keeps a part of the first batch of each worker, which a loader takes in turn at the start of an epoch."""

    name = "equal_workers"
    stages = ("fit",)
    after = ("settings",)

    def __init__(self, run: RunContext) -> None:
        self._n_workers = 0
        self._firsts: list[list[torch.Tensor]] = []
        self._n_equal: int | None = None

    def loops_ready(self, run: RunContext) -> None:
        loaders = [one for one in run.settings.loaders if one.stage == "train"]
        if len(loaders) == 1 and loaders[0].is_iterable and (loaders[0].num_workers or 0) > 1:
            self._n_workers = min(loaders[0].num_workers or 0, _MOST_WORKERS)

    @property
    def next_step(self) -> int:
        return len(self._firsts) if len(self._firsts) < self._n_workers else NEVER

    def step_begins(self, batch: Any) -> None:
        with plain.without_overrides(), torch.no_grad():
            tensors = plain.tensors_in(batch, left=plain.search_limit())
            parts = (part_of(one) for one in tensors if one.layout is torch.strided)
            known = (part.clone() for part in parts if part is not None)
            self._firsts.append(list(islice(known, _N_TENSORS)))

    def epoch_ends(self) -> None:
        self._compare()
        self._n_workers = 0  # without a batch of each worker, the next one would be of the first worker again
        self._firsts.clear()

    def _compare(self) -> None:
        if self._firsts and len(self._firsts) == self._n_workers:
            with plain.without_overrides(), torch.no_grad():
                self._n_equal = _n_equal([[one.cpu() for one in first] for first in self._firsts])
            self._n_workers = 0
            self._firsts.clear()

    def part(self, session: Session) -> Mapping[str, Any]:
        self._compare()
        if self._n_equal is None:
            return {}
        settings, replace = session.settings, msgspec.structs.replace
        n = self._n_equal
        loaders = (replace(one, n_equal_workers=n) if one.stage == "train" else one for one in settings.loaders)
        return {"settings": replace(settings, loaders=tuple(loaders))}


def _n_equal(firsts: list[list[torch.Tensor]]) -> int | None:
    """Return how many batches equal the first one, itself included; None if that may be chance."""
    first = firsts[0]
    if not any(bool((one != one[0]).any()) for one in first):
        return None
    return sum(
        len(other) == len(first) and all(torch.equal(one, same) for one, same in zip(first, other, strict=True))
        for other in firsts
    )
