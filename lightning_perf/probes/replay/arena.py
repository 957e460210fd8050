"""Random tensors of given shapes, all cut out of one block of memory per dtype."""

from __future__ import annotations

from typing import Any

import torch

from .calls import TensorSpec

_DISTINCT = 2**18
_ALIGNMENT = 16  # elements: 64 bytes of float32


class Arena:
    """A block of random numbers in 0…1 that tensors are views of.

    Successive tensors come from successive places, as in a step, so that they are no more often in a cache than there.

    Args:
        device: The device.
        n_elements: Elements of the block; no tensor may be larger.
        seed: Of a generator that belongs to this arena: no other random stream is touched.
    """

    def __init__(self, device: torch.device, n_elements: int, seed: int = 0) -> None:
        generator = torch.Generator(device=device).manual_seed(seed)
        self.n_elements = n_elements
        numbers = torch.rand(min(n_elements, _DISTINCT), generator=generator, dtype=torch.float32, device=device)
        numbers = numbers.repeat(-(-n_elements // max(1, len(numbers))))  # a copy costs less than more random numbers
        self._blocks = {torch.float32: numbers}
        self._place = 0

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        """Return a tensor as specified: a leaf of the autograd graph that no other code has seen."""
        block = self._blocks.get(spec.dtype)
        if block is None:
            block = self._blocks[spec.dtype] = _as(self._blocks[torch.float32], spec.dtype)
        extent = -(-spec.extent // _ALIGNMENT) * _ALIGNMENT
        if self._place + extent > self.n_elements:
            self._place = 0
        # .data: autocast keeps its cast of a leaf, but not of a view.
        found = torch.as_strided(block, spec.shape, spec.stride, self._place).data
        self._place += extent
        return found.requires_grad_(spec.needs_grad)

    def filled(self, value: Any) -> Any:
        """Return nested arguments with tensors in place of their specs."""
        if isinstance(value, TensorSpec):
            return self.tensor(value)
        if isinstance(value, (list, tuple)):
            return [self.filled(each) for each in value]
        return value


def _as(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return numbers > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return numbers.to(dtype)
    return torch.zeros_like(numbers, dtype=dtype)


def needed_elements(specs: list[TensorSpec]) -> int:
    """Return the elements that an arena needs to hold these tensors side by side."""
    return sum(-(-spec.extent // _ALIGNMENT) * _ALIGNMENT for spec in specs)
