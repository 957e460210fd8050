"""Counts memory by storage: what views, ties and copies of a reference share is counted once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

Key = tuple[str, int]
"""A storage: its device, and its address or, where it has none, its own identity."""

_MAX_DEPTH = 6


class Storage:
    """One storage.

    Attributes:
        key: The same for all tensors that share it.
        n_bytes: Its size.
        device: E.g. ``"cuda:0"``.
    """

    __slots__ = ("device", "key", "n_bytes")

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.device = str(storage.device)
        self.n_bytes = int(storage.nbytes())
        # A storage without memory (meta tensors, what FSDP has freed) has no address to go by.
        self.key: Key = (self.device, storage.data_ptr() or -int(storage._cdata))


def storages_of(tensor: torch.Tensor) -> Iterator[Storage]:
    """The storages behind a tensor: one, or those inside a tensor subclass such as DTensor; none where it has none."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten()[0]:
            inner = getattr(tensor, name)
            if isinstance(inner, torch.Tensor):  # newer versions list a mesh there too
                yield from storages_of(inner)
        return
    if tensor.layout is not torch.strided:
        yield from _sparse_storages(tensor)
        return
    storage = Storage(tensor)
    if storage.n_bytes:
        yield storage


def _sparse_storages(tensor: torch.Tensor) -> Iterator[Storage]:
    parts = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    }.get(tensor.layout, ())
    for name in parts:
        yield from storages_of(getattr(tensor.detach(), name)())


def tensors_in(value: Any, depth: int = _MAX_DEPTH) -> Iterator[torch.Tensor]:
    """The tensors in nested dicts, lists, tuples, dataclasses and plain objects such as a packed batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth == 0 or isinstance(value, (str, bytes, int, float, type(None), torch.nn.Module)):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        yield from tensors_in(list(vars(value).values()) if hasattr(value, "__dict__") else (), depth - 1)


class StorageCount:
    """Adds up storages, each once however often it comes.

    Args:
        device: The device that counts; what lies elsewhere is added to ``elsewhere_bytes``.
    """

    def __init__(self, device: Any) -> None:
        self.device = str(device)
        self.elsewhere_bytes = 0
        self._seen: set[Key] = set()

    def add(self, tensors: Iterable[torch.Tensor | None]) -> int:
        """Counts tensors.

        Args:
            tensors: None and uninitialised ones count nothing.

        Returns:
            Bytes that they add on the device.
        """
        added = 0
        for tensor in tensors:
            if tensor is None or torch.nn.parameter.is_lazy(tensor):
                continue
            for storage in storages_of(tensor):
                if storage.key in self._seen:
                    continue
                self._seen.add(storage.key)
                if _same_device(storage.device, self.device):
                    added += storage.n_bytes
                else:
                    self.elsewhere_bytes += storage.n_bytes
        return added

    def forget(self, key: Key) -> None:
        """Lets a storage count again: its memory is given back, and another may come to lie at its address."""
        self._seen.discard(key)


def _same_device(one: str, other: str) -> bool:
    return one == other or one.split(":")[0] == other or other.split(":")[0] == one
