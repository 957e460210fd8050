"""Find the dense tensors in the arguments and results of operators."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lightning_perf.probes.model import module_walk
from lightning_perf.probes.plain import attributes, is_plain_tensor
from lightning_perf.probes.replay.calls import flat


def is_dense(value: Any) -> bool:
    """Return whether a value is a tensor of elements in one storage."""
    return is_plain_tensor(value) and value.layout is torch.strided and not value.is_nested


def dense_tensors(value: Any) -> list[torch.Tensor]:
    """Return the dense tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in flat(value) if is_dense(leaf)]


def dense_tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield parameters, buffers and tensors that modules have as attributes."""
    yield from dense_tensors([*module_walk.parameters(module), *module_walk.buffers(module)])
    for each in module_walk.modules(module):
        yield from filter(is_dense, attributes(each).values())


def storage_number(tensor: torch.Tensor) -> int:
    """Return a number of a tensor's storage, which another one may get when the storage is freed."""
    return int(tensor.untyped_storage()._cdata)
