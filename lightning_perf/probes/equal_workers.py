"""Compare the first batches of the workers that read an ``IterableDataset``: each must have samples of its own."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
import torch

from lightning_perf.records import LoaderSettings, Session

from . import plain
from .base import Probe, RunContext
from .clock import NEVER

_MOST_WORKERS = 16
_N_TENSORS, _N_ELEMENTS = 4, 256
"""Tensors of a batch that are compared, and elements of each; they are kept until the session is read."""


class EqualWorkersProbe(Probe):
    """Keeps a part of the first batch of each worker: a loader takes batches from its workers in turn."""

    name = "equal_workers"
    stages = ("fit",)
    after = ("settings",)

    def __init__(self, run: RunContext) -> None:
        self._n_workers = 0
        self._firsts: list[list[torch.Tensor]] = []

    def loops_ready(self, run: RunContext) -> None:
        loaders = [one for one in run.settings.loaders if one.stage == "train"]
        if len(loaders) == 1 and loaders[0].is_iterable and (loaders[0].num_workers or 0) > 1:
            self._n_workers = min(loaders[0].num_workers or 0, _MOST_WORKERS)

    @property
    def next_step(self) -> int:
        return len(self._firsts) if len(self._firsts) < self._n_workers else NEVER

    def step_begins(self, batch: Any) -> None:
        with plain.without_overrides(), torch.no_grad():
            tensors = (one for one in plain.tensors_in(batch, left=plain.visits()) if one.layout is torch.strided)
            self._firsts.append([one.reshape(-1)[:_N_ELEMENTS].clone() for one in islice(tensors, _N_TENSORS)])

    def part(self, session: Session) -> Mapping[str, Any]:
        if len(self._firsts) < max(2, self._n_workers):
            return {}
        with plain.without_overrides(), torch.no_grad():
            n = _n_equal([[one.cpu() for one in first] for first in self._firsts])
        settings = session.settings
        loaders = tuple(_with_equal(one, n) for one in settings.loaders)
        return {"settings": msgspec.structs.replace(settings, loaders=loaders)}


def _n_equal(firsts: list[list[torch.Tensor]]) -> int | None:
    """Return how many batches equal the first one, itself included; None if that may be chance."""
    first = firsts[0]
    if not any(bool((one != one[0]).any()) for one in first if len(one)):
        return None
    return sum(
        len(other) == len(first) and all(torch.equal(one, same) for one, same in zip(first, other, strict=True))
        for other in firsts
    )


def _with_equal(loader: LoaderSettings, n: int | None) -> LoaderSettings:
    return msgspec.structs.replace(loader, n_equal_workers=n) if loader.stage == "train" else loader
