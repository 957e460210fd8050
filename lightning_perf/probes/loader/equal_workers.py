"""Compare the first batches of the workers that read an ``IterableDataset``: each must have samples of its own."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
import torch

from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.clock import NEVER
from lightning_perf.records import LoaderSettings, Session

_MOST_WORKERS = 16
_N_TENSORS, _N_ELEMENTS = 16, 256
"""Tensors of a batch that are compared, and elements of each, evenly spread."""


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
            tensors = islice(filter(_is_dense, plain.tensors_in(batch, left=plain.search_limit())), _N_TENSORS)
            self._firsts.append([_some_elements(one) for one in tensors])

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
        settings = session.settings
        loaders = tuple(_with_equal(one, self._n_equal) for one in settings.loaders)
        return {"settings": msgspec.structs.replace(settings, loaders=loaders)} if self._n_equal is not None else {}


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0 and torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _some_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return elements at even distances in the tensor's memory, which is not copied as a whole."""
    n = min(tensor.numel(), _N_ELEMENTS)
    return tensor.as_strided((n,), (tensor.numel() // n,), tensor.storage_offset()).clone()


def _n_equal(firsts: list[list[torch.Tensor]]) -> int | None:
    """Return how many batches equal the first one, itself included; None if that may be chance."""
    first = firsts[0]
    if not any(bool((one != one[0]).any()) for one in first):
        return None
    return sum(
        len(other) == len(first) and all(torch.equal(one, same) for one, same in zip(first, other, strict=True))
        for other in firsts
    )


def _with_equal(loader: LoaderSettings, n: int | None) -> LoaderSettings:
    return msgspec.structs.replace(loader, n_equal_workers=n) if loader.stage == "train" else loader
