"""Find large weights that a fit does not change, and that each checkpoint holds nevertheless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch import nn

from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.model import module_walk
from lightning_perf.records import FixedWeights, Session

_LEAST_BYTES = 2**20  # smaller ones add next to nothing to the time of saving a checkpoint
_N_SAMPLED = 64
"""Elements that are compared: an average of other weights, such as a teacher's, changes all of them."""


class FixedWeightsProbe(Probe):
    """Compares a few elements of the weights without a gradient at the start and at the end of a fit."""

    name = "fixed_weights"
    stages = ("fit",)
    after = ("settings", "gradients", "hyperparameters", "added_hooks")

    def __init__(self, run: RunContext) -> None:
        self._module, self._is_first_rank = run.pl_module, run.trainer.is_global_zero
        self._before: dict[str, torch.Tensor] = {}
        self._found: FixedWeights | None = None

    def start(self) -> None:
        if self._is_first_rank:
            self._before = {name: _sample(tensor) for name, tensor in _saved(self._module)}

    def before_report(self, is_last: bool) -> None:
        if is_last:
            self._found = _unchanged(self._module, self._before)

    def part(self, session: Session) -> Mapping[str, Any]:
        settings, replace = session.settings, msgspec.structs.replace
        if self._found is None or settings.model is None:
            return {}
        return {"settings": replace(settings, model=replace(settings.model, fixed_weights=self._found))}


def _saved(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the large parameters and buffers without a gradient that are in the state of a module, by path."""
    for name, tensor in (*module_walk.named_parameters(root), *module_walk.saved_buffers(root)):
        is_dense = plain.is_plain_tensor(tensor) and tensor.layout is torch.strided and tensor.device.type != "meta"
        if is_dense and not tensor.requires_grad and tensor.is_contiguous() and tensor.nbytes >= _LEAST_BYTES:
            yield name, tensor


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of some elements, evenly spread."""
    with plain.without_overrides():
        return tensor.detach().view(-1)[:: max(1, tensor.numel() // _N_SAMPLED)].cpu().clone()


def _unchanged(root: nn.Module, before: Mapping[str, torch.Tensor]) -> FixedWeights | None:
    """Return what of the weights is as it was; None if nothing is."""
    sizes = {
        name: tensor.nbytes
        for name, tensor in _saved(root)
        if name in before and torch.equal(_sample(tensor), before[name])
    }
    if not sizes:
        return None
    largest = max(sizes, key=sizes.__getitem__)
    is_buffer = largest in dict(module_walk.saved_buffers(root))
    return FixedWeights(n_bytes=sum(sizes.values()), largest=largest, is_buffer=is_buffer)
