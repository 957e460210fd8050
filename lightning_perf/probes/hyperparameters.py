"""Find data among the hyperparameters of a module, which Lightning writes into each checkpoint."""

from __future__ import annotations

import dis
import io
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import Hyperparameters, Session
from lightning_perf.records.files import require_free_space

from . import module_walk, plain
from .base import Probe, RunContext
from .host_lines.calls import line_of

_LEAST_BYTES = 2**20  # less adds next to nothing to the time of saving a checkpoint
_MOST_WRITTEN_BYTES = 2**24  # larger data is timed with this many bytes, and its time extrapolated
_MOST_PICKLED = 1000  # of the items of a longer list or dict, to estimate the size and the time of all
_MOST_VISITED = 50_000  # objects in these items
_VALUES = frozenset({int, float, complex, str, bytes, bool, type(None)})
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
        settings, replace = session.settings, msgspec.structs.replace
        if self._found is None or settings.model is None:
            return {}
        return {"settings": replace(settings, model=replace(settings.model, hyperparameters=self._found))}


def read_hyperparameters(module: Any, folder: Path | None) -> Hyperparameters | None:
    """Return the data in a module's hyperparameters; None if they have less than a mebibyte of it.

    Data are tensors and arrays, and numbers and strings in long lists. What a checkpoint holds anyway, such as the
    module's own parameters, is not counted. ``folder`` is where saving is
    timed; None if it may not be.
    """
    values = plain.items_of(plain.stored(module, "_hparams"), plain.MAX_VISITED) or []
    states = (*module_walk.parameters(module), *module_walk.buffers(module))
    named = [(key, value) for key, value in values if type(key) is str]
    with plain.without_overrides():
        seen = {plain.storage_address(one) for one in states if plain.has_shape(one)}
        arrays = {key: sum(_sizes(value, _DEPTH, plain.visits(), seen)) for key, value in named}
        objects = {key: _python_values(value, _DEPTH) for key, value in named}
        sizes = {key: n_array_bytes + round(objects[key].n_bytes) for key, n_array_bytes in arrays.items()}
        n_bytes, largest = sum(sizes.values()), max(sizes, key=sizes.__getitem__, default="")
        if n_bytes < _LEAST_BYTES:
            return None
        costs_s = _added_save_s(n_bytes, folder) if folder is not None else None
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


def _python_values(value: Any, depth: int) -> _Pickled:
    """Return what the numbers and strings in long lists and dicts take, from some of their items."""
    items = plain.items_of(value, _MOST_PICKLED) if depth else None
    if not items:
        return _Pickled()
    if len(items) < _MOST_PICKLED:
        found = [_python_values(item, depth - 1) for _, item in items]
        return _Pickled(sum(each.n_bytes for each in found), sum(each.seconds for each in found))
    left = plain.visits(_MOST_VISITED)
    sample = [item for _, item in itertools.takewhile(lambda pair: _is_of_values(pair[1], _DEPTH, left), items)]
    if len(sample) < min(len(items), 2):
        return _Pickled()
    _pickled(sample[:1])  # the first one takes longer
    nothing, some = _pickled([]), _pickled(sample)
    times = (plain.length_of(value) or len(items)) / len(sample)
    return _Pickled(times * (some.n_bytes - nothing.n_bytes), times * max(0.0, some.seconds - nothing.seconds))


def _is_of_values(value: Any, depth: int, left: Iterator[int]) -> bool:
    """Return whether a value is a number or string, or made of such; False where no visits are ``left``."""
    if next(left, None) is None:
        return False
    if type(value) in _VALUES:
        return True
    if not depth or type(value) not in (list, tuple, dict):
        return False
    return all(_is_of_values(item, depth - 1, left) for _, item in plain.items_of(value) or ())


def _pickled(content: Any) -> _Pickled:
    begin, buffer = time.perf_counter(), io.BytesIO()
    torch.save(content, buffer)
    return _Pickled(buffer.tell(), time.perf_counter() - begin)


def _added_save_s(n_bytes: int, folder: Path) -> float | None:
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
