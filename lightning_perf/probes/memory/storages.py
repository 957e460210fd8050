"""Count memory by storage: memory that views or tied parameters share counts once."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from lightning_perf.probes import plain

Key = tuple[str, int]
"""Identity of a storage: its device and its address, or the negated address of its object if it has no memory."""


class Storage:
    """One storage; ``key`` is the same for all tensors that share it, ``device`` e.g. ``"cuda:0"``."""

    __slots__ = ("device", "key", "n_bytes")

    def __init__(self, tensor: torch.Tensor) -> None:
        with plain.without_overrides():
            storage = torch._C.TensorBase.untyped_storage(tensor)
        self.device = str(storage.device)
        self.n_bytes = int(storage.nbytes())
        # A storage without memory (meta tensors, what FSDP has freed) has no address to go by.
        self.key: Key = (self.device, storage.data_ptr() or -int(storage._cdata))


def storages_of(tensor: torch.Tensor) -> Iterator[Storage]:
    """Yield the storages of a tensor: one, or those inside torch's own subclasses such as DTensor.

    Yield none for a tensor subclass of the user's with its own dispatch.
    """
    kind = type(tensor)
    if not plain.is_readable_tensor(tensor):
        return
    if not plain.is_plain_tensor(tensor) and plain.has_class_attribute(kind, "__tensor_flatten__"):
        if plain.is_library(kind):
            yield from _inner_storages(tensor)
        return
    if plain.field(tensor, "layout") is not torch.strided:
        yield from _sparse_storages(tensor)
        return
    storage = Storage(tensor)
    if storage.n_bytes:
        yield storage


def n_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a readable tensor's elements; of a sparse one, the bytes that it stores."""
    if plain.field(tensor, "layout") is torch.strided:
        return plain.n_elements(tensor) * int(plain.field(tensor, "dtype").itemsize)
    return sum(storage.n_bytes for storage in storages_of(tensor))


def _inner_storages(tensor: Any) -> Iterator[Storage]:
    for name in tensor.__tensor_flatten__()[0]:
        inner = getattr(tensor, name)
        if isinstance(inner, torch.Tensor):  # newer versions list a mesh there too
            yield from storages_of(inner)


def _sparse_storages(tensor: torch.Tensor) -> Iterator[Storage]:
    layout = plain.field(tensor, "layout")
    parts = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    }.get(layout, ())
    with plain.without_overrides():
        inner = torch._C.TensorBase.detach(tensor)
        found = [getattr(inner, name)() for name in parts] if plain.is_plain_tensor(inner) else []
    for each in found:
        yield from storages_of(each)


class StorageCount:
    """Adds up storages on one device, each once; those elsewhere are added to ``elsewhere_bytes``."""

    def __init__(self, device: Any) -> None:
        self.device = str(device)
        self.elsewhere_bytes = 0
        self._seen: set[Key] = set()

    def add(self, tensors: Iterable[torch.Tensor | None]) -> int:
        """Count tensors; return the bytes that they add on the device. None and uninitialized ones count nothing."""
        added = 0
        for tensor in tensors:
            if tensor is None or plain.is_lazy(tensor):
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
        """Count a storage again if it returns: its memory was freed, and another may get its address."""
        self._seen.discard(key)


def _same_device(one: str, other: str) -> bool:
    return one == other or one.split(":")[0] == other or other.split(":")[0] == one
