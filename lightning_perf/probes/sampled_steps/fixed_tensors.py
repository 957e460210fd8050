"""Tensors of a module that are not trained: which of them stay the same from step to step."""

import weakref

import torch

from lightning_perf.interrupts import raise_if_from_signal

_N_COMPARED = 1024  # elements of each tensor


class FixedTensors:
    """Parts of tensors at one time, to be compared with them later. The tensors themselves are not kept alive."""

    def __init__(self) -> None:
        self._parts: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []

    def add(self, tensor: torch.Tensor) -> int | None:
        """Return the place of a tensor, from 0; None where it cannot be compared."""
        part = part_of(tensor)
        if part is None:
            return None
        self._parts.append((weakref.ref(tensor), part.clone()))
        return len(self._parts) - 1

    def alive(self) -> list[tuple[int, torch.Tensor]]:
        """Return the tensors that still exist, with their places."""
        pairs = ((place, reference()) for place, (reference, _) in enumerate(self._parts))
        return [(place, tensor) for place, tensor in pairs if tensor is not None]

    def changed(self) -> list[int]:
        """Return the places of tensors that changed or no longer exist. This waits for the device."""
        return [place for place, (reference, before) in enumerate(self._parts) if not _is_same(reference(), before)]


def part_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return up to ``_N_COMPARED`` evenly spaced elements, in any dense layout; None where they cannot be viewed."""
    if not tensor.numel() or tensor.device.type == "meta":
        return None
    try:
        by_stride = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        dense = tensor.detach().permute(by_stride)
        return dense.view(-1)[:: -(-tensor.numel() // _N_COMPARED)]
    except RuntimeError as error:  # its storage was freed, as FSDP does
        raise_if_from_signal(error)
        return None


def _is_same(tensor: torch.Tensor | None, before: torch.Tensor) -> bool:
    part = part_of(tensor) if tensor is not None else None
    return part is not None and part.shape == before.shape and bool(torch.equal(part, before))
