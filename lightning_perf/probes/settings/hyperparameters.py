"""Find data among the hyperparameters of a module, which Lightning writes into each checkpoint."""

from __future__ import annotations

import dis
import io
import itertools
import os
import pickle
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext, model_part
from lightning_perf.probes.host_lines.calls import line_of
from lightning_perf.probes.model import module_walk
from lightning_perf.records import Hyperparameters, Session
from lightning_perf.records.files import require_free_space

_LEAST_BYTES = 2**20  # less adds next to nothing to the time of saving a checkpoint
_MOST_WRITTEN_BYTES = 2**24  # larger data is timed with this many bytes, and its time extrapolated
_LONG, _N_SAMPLED = 1000, 100  # items of a long list, and those of them that are serialized
_MOST_VISITED = 20_000  # objects, in all lists together
_MOST_LETTERS = 1000  # of a sampled string
_NUMBERS = frozenset({int, float, complex, bool, type(None)})
_CONTAINERS = (list, tuple, dict)
_DEPTH = 4
_SAVE = "save_hyperparameters"


class HyperparametersProbe(Probe):
    """Reads ``hparams`` once, at the end of a fit, and times what they add to the time of saving a checkpoint."""

    name = "hyperparameters"
    stages = ("fit",)
    after = ("settings", "gradients")

    def __init__(self, run: RunContext) -> None:
        self._module, self._folder, self._is_first_rank = run.pl_module, run.folder, run.trainer.is_global_zero
        self._found: Hyperparameters | None = None

    def before_report(self, is_last: bool) -> None:
        if is_last and self._is_first_rank:
            self._found = read_hyperparameters(self._module, self._folder)

    def part(self, session: Session) -> Mapping[str, Any]:
        return model_part(session, "hyperparameters", self._found)


def read_hyperparameters(module: Any, folder: Path | None) -> Hyperparameters | None:
    """Return the data in a module's hyperparameters; None if they have less than a mebibyte of it.

    Data are tensors and arrays, and numbers and strings in long lists. What a checkpoint holds anyway, such as the
    module's own parameters, is not counted. ``folder`` is where saving is timed; None if it may not be.
    """
    values = plain.items_of(plain.stored(module, "_hparams"), plain.MAX_VISITED) or []
    states = (*module_walk.parameters(module), *module_walk.buffers(module))
    named = [(key, value) for key, value in values if type(key) is str]
    with plain.without_overrides():
        seen = {plain.storage_address(one) for one in states if plain.has_shape(one)}
        arrays = {key: sum(_sizes(value, _DEPTH, plain.search_limit(), seen)) for key, value in named}
        lists = _Lists()
        objects = {key: lists.of(value) for key, value in named}
        sizes = {key: n_array_bytes + round(objects[key].n_bytes) for key, n_array_bytes in arrays.items()}
        n_bytes, largest = sum(sizes.values()), max(sizes, key=sizes.__getitem__, default="")
        if n_bytes < _LEAST_BYTES:
            return None
        costs_s = added_save_s(n_bytes, folder) if folder is not None else None
        if costs_s is not None:
            costs_s += sum(each.seconds for each in objects.values())
    return Hyperparameters(
        n_bytes=n_bytes, largest=largest, largest_bytes=sizes[largest], costs_s=costs_s, site=_site(type(module))
    )


def _sizes(value: Any, depth: int, left: Iterator[int], seen: set[int]) -> Iterator[int]:
    """Yield the bytes of the arrays in a value, and of its tensors' storages, which are saved whole and once."""
    if next(left, None) is None:
        return
    if plain.is_plain_tensor(value):
        address = plain.storage_address(value)
        if address and address not in seen:
            seen.add(address)
            yield value.untyped_storage().nbytes()
    elif type(value) is np.ndarray:
        if id(value) not in seen:
            seen.add(id(value))
            yield value.nbytes
    elif plain.is_a(value, torch.nn.Module):
        for each in (*module_walk.parameters(value), *module_walk.buffers(value)):
            yield from _sizes(each, depth, left, seen)
    else:
        for _, item in (plain.items_of(value, plain.MAX_VISITED) or ()) if depth else ():
            yield from _sizes(item, depth - 1, left, seen)


class _Pickled(NamedTuple):
    """Bytes that Python values take in a checkpoint, and the seconds to put them into bytes."""

    n_bytes: float = 0.0
    seconds: float = 0.0


def _serializing_s(content: Any) -> float:
    begin = time.perf_counter()
    torch.save(content, io.BytesIO())  # slower than pickle alone
    return time.perf_counter() - begin


class _Lists:
    """Estimate what numbers and strings in long lists take, from some of their items and within a few milliseconds."""

    def __init__(self) -> None:
        self._left = plain.search_limit(_MOST_VISITED)
        self._seen: set[int] = set()

    def of(self, value: Any, depth: int = _DEPTH) -> _Pickled:
        """Return what the long lists in a value take; nothing for a list seen before, which is saved once."""
        if not depth or type(value) not in _CONTAINERS or id(value) in self._seen or next(self._left, None) is None:
            return _Pickled()
        self._seen.add(id(value))
        if len(value) < _LONG:
            found = [self.of(item, depth - 1) for item in (value.values() if type(value) is dict else value)]
            return _Pickled(sum(each.n_bytes for each in found), sum(each.seconds for each in found))
        items = value.items() if type(value) is dict else value
        sample = list(itertools.islice(items, 0, None, len(value) // _N_SAMPLED))
        saved = [item for pair in sample for item in pair] if type(value) is dict else sample
        objects = [id(item) for item in saved if type(item) not in _NUMBERS]
        is_repeating = len(set(objects)) < len(objects)  # what occurs again is saved once
        if is_repeating or not all(self._is_of_values(item, depth) for item in saved):
            return _Pickled()
        _serializing_s([])  # the first one takes longer
        added_s = _serializing_s(sample) - _serializing_s([])
        times = len(value) / len(sample)
        return _Pickled(times * len(pickle.dumps(sample, protocol=2)), times * max(0.0, added_s))

    def _is_of_values(self, value: Any, depth: int) -> bool:
        """Return whether a value is a number or short string, or made of such; False past the search's limit."""
        if next(self._left, None) is None:
            return False
        kind = type(value)
        if kind in _NUMBERS or (kind in (str, bytes) and len(value) <= _MOST_LETTERS):
            return True
        if not depth or kind not in _CONTAINERS or len(value) >= _LONG:
            return False
        items = itertools.chain(value, value.values()) if kind is dict else value
        return all(self._is_of_values(item, depth - 1) for item in items)


def added_save_s(n_bytes: int, folder: Path) -> float | None:
    """Return the seconds that ``n_bytes`` of data add to saving a checkpoint; None if they cannot be timed.

    An empty file and one with the data are written as Lightning writes checkpoints, and removed.
    """
    n_written = min(n_bytes, _MOST_WRITTEN_BYTES)
    nothing, data = (torch.zeros(size, dtype=torch.uint8, device="cpu") for size in (0, n_written))
    try:
        require_free_space(folder, n_written)
        _timed_save(nothing, folder)  # the first one takes longer
        without_s, with_s = (_timed_save(content, folder) for content in (nothing, data))
        return max(0.0, with_s - without_s) * n_bytes / n_written
    except OSError as error:  # a full disk, for example
        raise_if_from_signal(error)
        return None


def _timed_save(content: torch.Tensor, folder: Path) -> float:
    begin = time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        buffer = io.BytesIO()
        torch.save(content, buffer)
        file.write(buffer.getvalue())
    return time.perf_counter() - begin


def _site(kind: type) -> str:
    """Return the line that saves the hyperparameters, e.g. ``"model.py:31"``; empty if no constructor does."""
    constructor = plain.class_attribute(kind, "__init__")
    code = constructor.__code__ if type(constructor) is FunctionType else None
    if code is None or _SAVE not in code.co_names:
        return ""
    offset = next(each.offset for each in dis.get_instructions(code) if each.argval == _SAVE)
    return f"{os.path.basename(code.co_filename)}:{line_of(code, offset)}"
