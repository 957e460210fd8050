"""Find large weights that a fit does not change, and that each checkpoint holds nevertheless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext, model_part
from lightning_perf.probes.model import module_walk
from lightning_perf.probes.model.made_at import made_at
from lightning_perf.records import FixedWeights, Session
from lightning_perf.seams import is_overridden

from .hyperparameters import added_save_s

_LEAST_BYTES = 2**20  # smaller ones add next to nothing to the time of saving a checkpoint
_N_SAMPLED = 64
"""Elements that are compared: an average of other weights, such as a teacher's, changes all of them."""

_SHARDING = ("FSDP", "DeepSpeed", "ModelParallel")
"""Parts of the names of strategies that save checkpoints in their own way."""

_HOOK = "on_save_checkpoint"


class _State(NamedTuple):
    """A tensor's place, its number of writes (without those to its ``data``), and some of its elements."""

    address: int
    version: int
    sample: torch.Tensor

    def is_same(self, other: _State) -> bool:
        is_untouched = (self.address, self.version) == (other.address, other.version)
        return is_untouched and torch.equal(self.sample, other.sample)


class FixedWeightsProbe(Probe):
    """Compares weights without a gradient at the start and at the end of a fit, and times what saving them adds."""

    name = "fixed_weights"
    stages = ("fit",)
    after = ("settings", "gradients", "hyperparameters", "added_hooks")

    def __init__(self, run: RunContext) -> None:
        self._module, self._trainer, self._folder = run.pl_module, run.trainer, run.folder
        self._before: dict[str, _State] = {}
        self._found: FixedWeights | None = None

    def loops_ready(self, run: RunContext) -> None:
        """Read the states after setup, in which a strategy moves, converts and loads weights."""
        if self._trainer.is_global_zero and _is_saved_whole(self._trainer, self._module):
            self._before = _states(self._module)

    def before_report(self, is_last: bool) -> None:
        if is_last:
            found = _unchanged(self._module, self._before)
            if found is not None and self._folder is not None:
                found = msgspec.structs.replace(found, costs_s=added_save_s(found.n_bytes, self._folder))
            self._found = found

    def part(self, session: Session) -> Mapping[str, Any]:
        return model_part(session, "fixed_weights", self._found)


def _saved(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the large parameters and buffers without a gradient that are in the state of a module, by path."""
    for name, tensor in (*module_walk.named_parameters(root), *module_walk.saved_buffers(root)):
        is_dense = plain.is_plain_tensor(tensor) and tensor.layout is torch.strided and tensor.device.type != "meta"
        if is_dense and not tensor.requires_grad and tensor.is_contiguous() and tensor.nbytes >= _LEAST_BYTES:
            yield name, tensor


def _is_saved_whole(trainer: Any, module: Any) -> bool:
    """Return whether a callback saves checkpoints of the module's state, which neither user nor strategy changes."""
    if not getattr(trainer, "checkpoint_callbacks", ()) or any(
        part in type(trainer.strategy).__name__ for part in _SHARDING
    ):
        return False
    owners = (module, *trainer.callbacks)
    return not is_overridden(module, "state_dict") and not any(is_overridden(one, _HOOK) for one in owners)


def _states(root: nn.Module) -> dict[str, _State]:
    """Return the states by path."""
    states = {name: _state(tensor) for name, tensor in _saved(root)}
    return {name: state for name, state in states.items() if state is not None}


def _state(tensor: torch.Tensor) -> _State | None:
    """Return the state of a tensor, with elements evenly spread; None if it cannot be read."""
    try:
        with plain.without_overrides():
            sample = tensor.detach().view(-1)[:: max(1, tensor.numel() // _N_SAMPLED)].cpu().clone()
            torch.equal(sample, sample)
            return _State(plain.storage_address(tensor), tensor._version, sample)
    except (RuntimeError, NotImplementedError) as error:  # a storage that was freed, or an exotic dtype
        raise_if_from_signal(error)
        return None


def _unchanged(root: nn.Module, before: Mapping[str, _State]) -> FixedWeights | None:
    """Return what of the parameters, or of the buffers, is as it was, whichever is more; None if nothing is."""
    if not before:
        return None
    buffers, tensors = dict(module_walk.saved_buffers(root)), dict(_saved(root))
    sizes: dict[bool, dict[str, int]] = {False: {}, True: {}}
    for name, state in _states(root).items():
        if name in before and state.is_same(before[name]):
            sizes[name in buffers][name] = tensors[name].nbytes
    is_buffer, found = max(sizes.items(), key=lambda one: sum(one[1].values()))
    if not found:
        return None
    largest = max(found, key=found.__getitem__)
    return FixedWeights(n_bytes=sum(found.values()), largest=largest, is_buffer=is_buffer, site=made_at(root, largest))
