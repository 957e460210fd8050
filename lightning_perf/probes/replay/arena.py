"""Random tensors of given shapes, all cut out of one block of memory per dtype."""

from __future__ import annotations

from typing import Any

import torch

from .calls import TensorSpec

_DISTINCT = 2**18
_ALIGNMENT = 16  # elements: 64 bytes of float32
_DENORMAL_BITS = 713_624  # 1e-39 as float32


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
        self._blocks = {(torch.float32, 0.0): numbers}
        self._place = 0

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        """Return a tensor as specified: a leaf of the autograd graph that no other code has seen."""
        denormal = spec.denormal if spec.dtype is torch.float32 else 0.0
        block = self._blocks.get((spec.dtype, denormal))
        if block is None:
            numbers = self._blocks[torch.float32, 0.0]
            block = _as(numbers, spec.dtype) if not denormal else _partly_denormal(numbers, denormal)
            self._blocks[spec.dtype, denormal] = block
        extent = -(-spec.extent // _ALIGNMENT) * _ALIGNMENT
        if extent > len(block):  # the gradient of a result that is larger than what went in
            block = block.repeat(-(-extent // len(block)))
        if self._place + extent > len(block):
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


def _partly_denormal(numbers: torch.Tensor, share: float) -> torch.Tensor:
    """Numbers of which a share is denormal; written as bits, which no processor takes as zero."""
    bits = torch.where(numbers < share, _DENORMAL_BITS, numbers.view(torch.int32))
    return bits.view(torch.float32)


def needed_elements(specs: list[TensorSpec]) -> int:
    """Return the elements that an arena needs to hold these tensors side by side."""
    return sum(-(-spec.extent // _ALIGNMENT) * _ALIGNMENT for spec in specs)
