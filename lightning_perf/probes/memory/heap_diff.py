"""Compare two snapshots of the live Python objects to find what grew between them.

The first snapshot records the length of every container, and the size of autograd graphs in attributes of modules and
callbacks. The second finds those that grew with the steps, the tensors and arrays they hold, and their names. A wide
snapshot takes tens of milliseconds, and is taken only when memory grows; a narrow one is taken in each run.
"""

import gc
import time
import types
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from torch import nn

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes import plain
from lightning_perf.probes.atomic_reads import live_objects
from lightning_perf.probes.model.module_walk import named_modules
from lightning_perf.probes.plain import tensors_in
from lightning_perf.records import Suspect

from .storages import storages_of

LIMIT_S = 1.0
"""Time limit of one snapshot, whose objects not reached by then are not included, and of the search for names."""

MIN_ITEMS_PER_STEP = 0.5
"""Slowest growth of a container that counts as a leak: one element in two steps."""

ENOUGH_ITEMS = 64
"""A leak holds an element of most steps so far, or at least this many if it began late. Fewer may be a window of the
last few steps that is filling up."""

_CONTAINERS = frozenset({list, dict, deque, set, OrderedDict, defaultdict})
_MAX_SUSPECTS = 5
_MAX_CANDIDATES = 50
_MAX_INSPECTED = 512
_MAX_GRAPH_NODES = 20_000
_CHECK_EVERY = 4096
_NAME_DEPTH = 5
_DIRECT_DEPTH = 2
_MAX_WRAPPERS = 8


class HeapDiff:
    """The first snapshot, after ``step``.

    ``roots`` are objects by name whose attributes hold the user's data: the module, callbacks, the datamodule. A wide
    snapshot includes all live containers, otherwise only those reachable from attributes of the roots (1-2 ms).
    """

    def __init__(self, roots: dict[str, Any], step: int, is_wide: bool = True, limit_s: float = LIMIT_S) -> None:
        self.step = step
        self.is_complete = True
        self._is_wide = is_wide
        self._limit_s = limit_s
        begin = time.perf_counter()
        # Flat arrays: a dict of so many numbers would look like a leak itself.
        self._ids, self._lengths = array("Q"), array("q")
        for container in self._containers(_Names(roots), begin):
            self._ids.append(id(container))
            self._lengths.append(len(container))
        self._graphs = dict(_graphs(roots))
        self.own_s = time.perf_counter() - begin

    def grown(self, roots: dict[str, Any], step: int) -> tuple[Suspect, ...]:
        """Return what grew since: graphs, then containers of tensors with graphs, then those with most bytes.

        Call it once: it frees the first snapshot. ``step`` is later than the first snapshot's.
        """
        begin = time.perf_counter()
        n_steps = max(1, step - self.step)
        names = _Names(roots)
        found = self._grown_graphs(roots, n_steps)
        held = []
        for container, n_added in self._grown_containers(names, n_steps, begin):
            suspect = _suspect(container, n_added, n_steps)
            if suspect is not None:
                held.append((suspect, container))
        held.sort(key=lambda pair: (-pair[0].n_with_graph, -(pair[0].tensor_bytes or 0)))
        names.until_s = time.perf_counter() + self._limit_s
        for suspect, container in held[:_MAX_SUSPECTS]:
            found.append(msgspec.structs.replace(suspect, name=names.of(container)))
        # Free the arrays now, so that the owner can measure what this snapshot allocated.
        self._ids, self._lengths = array("Q"), array("q")
        self.own_s += time.perf_counter() - begin
        return tuple(found[:_MAX_SUSPECTS])

    def _grown_graphs(self, roots: dict[str, Any], n_steps: int) -> list[Suspect]:
        grown = ((name, size, size - self._graphs.get(name, size)) for name, size in _graphs(roots))
        return [
            Suspect(name=name, kind="graph", n_items=size, items_per_step=added / n_steps)
            for name, size, added in grown
            if added >= n_steps
        ]

    def _grown_containers(self, names: "_Names", n_steps: int, begin: float) -> list[tuple[Any, int]]:
        """Return containers with the number of elements they gained, largest first."""
        least = max(1.0, MIN_ITEMS_PER_STEP * n_steps)
        fewest = max(least, min(MIN_ITEMS_PER_STEP * (self.step + n_steps), ENOUGH_ITEMS))
        order = np.asarray(self._ids).argsort()
        ids, lengths = np.asarray(self._ids)[order], np.asarray(self._lengths)[order]
        grown: dict[int, tuple[Any, int]] = {}
        # Only containers with a recorded length are known to have grown.
        for container in self._containers(names, begin):
            if len(container) >= fewest:
                place = int(np.searchsorted(ids, np.uint64(id(container))))
                if place < len(ids) and ids[place] == id(container) and len(container) - lengths[place] >= least:
                    grown[id(container)] = (container, len(container) - int(lengths[place]))
        return sorted(grown.values(), key=lambda pair: -len(pair[0]))[:_MAX_CANDIDATES]

    def _containers(self, names: "_Names", begin: float) -> Iterator[Any]:
        yield from names.containers  # first, to be included despite the time limit
        if not self._is_wide:
            return
        for i, value in enumerate(live_objects()):
            if type(value) in _CONTAINERS:
                yield value
            if i % _CHECK_EVERY == 0 and time.perf_counter() - begin > self._limit_s:
                self.is_complete = False
                return


def _suspect(container: Any, n_added: int, n_steps: int) -> Suspect | None:
    values = container.values() if plain.is_a(container, dict) else container
    newest = values if plain.is_a(values, set) else reversed(values)  # the others are estimated by their mean
    try:
        n_items, inspected = len(container), list(islice(newest, _MAX_INSPECTED))
    except RuntimeError as error:  # another thread changes it
        raise_if_from_signal(error)
        return None
    if not inspected:  # another thread emptied it
        return None
    sizes: dict[Any, int] = {}
    n_with_graph, n_holding = 0, 0
    for element in inspected:
        tensors = [t for t in tensors_in(element, depth=3) if not plain.is_a(t, nn.Parameter)]
        arrays = _arrays_in(element)
        n_holding += bool(tensors or arrays)
        n_with_graph += any(plain.field(t, "grad_fn") is not None for t in tensors)
        for tensor in tensors:
            sizes.update((s.key, s.n_bytes) for s in storages_of(tensor))
        sizes.update((id(array), array.nbytes) for array in arrays)
    if n_holding * 2 < len(inspected):
        return None
    scale = n_items / len(inspected)
    return Suspect(
        name="",
        kind=type(container).__name__,
        n_items=n_items,
        items_per_step=n_added / n_steps,
        tensor_bytes=int(scale * sum(sizes.values())),
        n_with_graph=round(scale * n_with_graph),
    )


def _arrays_in(element: Any) -> list[Any]:
    """Return the arrays that an element of a container is or holds; of a view, the array that owns the memory."""
    found = []
    for value in (element, *(inner for _, inner in plain.items_of(element, _MAX_INSPECTED) or ())):
        while type(value) is np.ndarray and type(value.base) is np.ndarray:
            value = value.base
        if type(value) is np.ndarray:
            found.append(value)
    return found


class _Names:
    """Names objects the way a user would write them, as paths from the roots."""

    def __init__(self, roots: dict[str, Any]) -> None:
        self._known: dict[int, str] = {}
        self._known_owners: dict[int, str] = {}
        self.containers: list[Any] = []
        """The containers reachable from attributes of the roots."""
        # A lookup here is free; asking the collector for referrers walks over all objects, until ``until_s``.
        self._direct: dict[int, str] = {}
        self.until_s = 0.0
        for name, owner in _owners(roots):
            held = plain.attributes(owner)
            self._known[id(held)] = self._known_owners[id(owner)] = name
            for key, value in list(held.items()):
                self._note(f"{name}.{key}", value, _DIRECT_DEPTH)

    def _note(self, name: str, value: Any, depth: int) -> None:
        if type(value) not in _CONTAINERS or id(value) in self._direct:
            return
        self._direct[id(value)] = name
        self.containers.append(value)
        if depth and plain.is_a(value, dict) and len(value) <= _MAX_INSPECTED:
            for key, item in list(value.items()):
                self._note(f"{name}[{_text(key)}]", item, depth - 1)

    def of(self, value: Any) -> str:
        """Return e.g. ``LitModel.losses`` or ``train.history['loss']``; a description if no name leads to the value."""
        if id(value) in self._direct:
            return self._direct[id(value)]
        found = self._path(value, _NAME_DEPTH, frozenset())
        return found if found is not None else f"a {type(value).__name__} that no attribute or module names"

    def _path(self, value: Any, depth: int, above: frozenset[int]) -> str | None:
        if depth == 0:
            return None
        referrers = [r for r in gc.get_referrers(value) if id(r) not in above and type(r) is not types.FrameType]
        above = above | {id(value), id(referrers)}
        for referrer in sorted(referrers, key=self._rank):
            if time.perf_counter() > self.until_s:  # thousands of objects may hold the value
                return None
            name = self._through(referrer, value, depth, above)
            if name is not None:
                return name
        return None

    def _rank(self, referrer: Any) -> int:
        if id(referrer) in self._known or id(referrer) in self._known_owners:
            return 0
        return 1 if type(referrer) is dict else 2

    def _through(self, referrer: Any, value: Any, depth: int, above: frozenset[int]) -> str | None:
        if type(referrer) in (dict, OrderedDict, defaultdict):
            return self._through_dict(referrer, value, depth, above)
        if type(referrer) in (list, tuple):
            outer = self._path(referrer, depth - 1, above)
            position = next((i for i, item in enumerate(referrer) if item is value), None)
            return None if outer is None or position is None else f"{outer}[{position}]"
        if type(referrer) is types.CellType:
            return self._through_cell(referrer)
        attributes = plain.attributes(referrer)
        if attributes and not plain.is_a(referrer, (type, types.ModuleType)):
            key = next((k for k, v in attributes.items() if v is value), None)
            if key is not None:
                return f"{self._known_owners.get(id(referrer)) or type(referrer).__name__}.{key}"
        return None

    def _through_dict(self, holder: dict[Any, Any], value: Any, depth: int, above: frozenset[int]) -> str | None:
        key = next((k for k, v in list(holder.items()) if v is value), None)
        if key is None:
            return None
        if id(holder) in self._known:
            return f"{self._known[id(holder)]}.{key}"
        if isinstance(holder.get("__name__"), str) and isinstance(key, str) and "__builtins__" in holder:
            return f"{holder['__name__']}.{key}"
        for owner in gc.get_referrers(holder):
            if plain.attributes(owner) is holder and isinstance(key, str):
                return f"{self._known_owners.get(id(owner)) or type(owner).__name__}.{key}"
        outer = self._path(holder, depth - 1, above)
        return None if outer is None else f"{outer}[{_text(key)}]"

    @staticmethod
    def _through_cell(cell: types.CellType) -> str | None:
        for closure in gc.get_referrers(cell):
            for function in gc.get_referrers(closure) if type(closure) is tuple else ():
                if type(function) is types.FunctionType and function.__closure__ == closure:
                    names = zip(function.__code__.co_freevars, closure, strict=False)
                    variable = next((name for name, each in names if each is cell), "?")
                    return f"{variable} (a variable that {function.__qualname__} closes over)"
        return None


def _text(key: Any) -> str:
    """Return a key as the user would write it; ``repr`` of other classes may run user code."""
    return repr(key) if type(key) in (str, int, float, bool, type(None)) else f"<{type(key).__name__}>"


def _owners(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the roots with their names, and all modules below them."""
    seen: set[int] = set()
    for root_name, root in roots.items():
        below = named_modules(root) if plain.is_a(root, nn.Module) else [("", root)]
        for name, owner in below:
            if id(owner) not in seen and plain.attributes(owner):
                seen.add(id(owner))
                yield (f"{root_name}.{name}" if name else root_name), owner


def _graphs(roots: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield tensors with an autograd graph in the owners' attributes, and the number of graph nodes."""
    for name, owner in _owners(roots):
        for key, value in list(plain.attributes(owner).items()):
            node = plain.field(value, "grad_fn") if plain.is_readable_tensor(value) else None
            if node is not None:
                yield f"{name}.{key}", _n_nodes(node)


def _n_nodes(node: Any) -> int:
    seen, todo = {node}, [node]
    while todo and len(seen) < _MAX_GRAPH_NODES:
        for below, _ in todo.pop().next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                todo.append(below)
    return len(seen)


def roots_of(pl_module: Any, callbacks: Iterable[Any], others: Iterable[Any]) -> dict[str, Any]:
    """Return the objects of a snapshot by class name: the module, callbacks, and others that are not None.

    Further objects of a class have a number in their name, e.g. ``"Recorder[1]"``.
    """
    roots: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for value in (pl_module, *callbacks, *others):
        if plain.attributes(value):
            name = type(value).__name__
            roots[f"{name}[{counts[name]}]" if counts[name] else name] = value
            counts[name] += 1
    return roots


def containers_of(dataset: Any) -> tuple[Suspect, ...]:
    """Return the containers in a dataset's attributes, which loader workers could fill."""
    for _ in range(_MAX_WRAPPERS):  # Subset and similar wrappers
        if (inner := plain.stored(dataset, "dataset")) is None:
            break
        dataset = inner
    return tuple(
        Suspect(name=f"{type(dataset).__name__}.{key}", kind=type(v).__name__, n_items=len(v), items_per_step=0.0)
        for key, v in plain.attributes(dataset).items()
        if type(v) in (list, dict, set)
    )[:_MAX_SUSPECTS]
