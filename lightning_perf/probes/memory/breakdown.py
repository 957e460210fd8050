"""Memory by content: parameters, gradients, optimizer states, buffers, copies, a batch and activations."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from lightning_perf.probes import plain
from lightning_perf.probes.model import module_walk
from lightning_perf.probes.model.module_walk import containing_module, top_level_modules
from lightning_perf.probes.model.saved_tensors import SavedTensors
from lightning_perf.probes.plain import search_limit, tensors_in
from lightning_perf.records import Breakdown, DeviceMemory, Headroom, HostMemory, ModuleMemory
from lightning_perf.stats.headroom import fit_samples, largest_batch

from .storages import StorageCount, storages_of

_MAX_MODULES = 32

HEADROOM_MARGIN = 0.1
"""Share of the capacity left free, for fragmentation and uneven batches (the near-capacity rule warns above 92 %)."""

STATE_FACTORS = {
    "SGD": lambda group: float(bool(group.get("momentum"))),
    "Adam": lambda group: 3.0 if group.get("amsgrad") else 2.0,
    "AdamW": lambda group: 3.0 if group.get("amsgrad") else 2.0,
    **dict.fromkeys(("NAdam", "RAdam", "SparseAdam", "Adamax", "Adadelta", "Rprop"), lambda group: 2.0),
    "Adagrad": lambda group: 1.0,
    "RMSprop": lambda group: 1.0 + bool(group.get("momentum")) + bool(group.get("centered")),
}
"""Bytes of state per byte of trainable parameter, by class of ``torch.optim`` (from ``_init_group`` of its sources).
Counters of a few bytes per parameter are omitted."""


class ModelMemory:
    """Memory of a module and its optimizers on one device; shared memory counts once.

    ``copies`` are modules held elsewhere, e.g. an average of the weights.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Iterable[Any],
        device: Any,
        copies: Sequence[nn.Module] = (),
        batch: Any = None,
    ) -> None:
        self.count = count = StorageCount(device)
        self.modules = top_level_modules(module)
        parameters = list(module_walk.named_parameters(module))
        by_module: dict[str, dict[str, int]] = {name: {} for name in ("", *self.modules)}

        def add(part: str, name: str, tensors: Iterable[torch.Tensor | None]) -> int:
            added = count.add(tensors)
            parts = by_module[containing_module(name, self.modules)]
            parts[part] = parts.get(part, 0) + added
            return added

        self.parameters_bytes = sum(add("parameters_bytes", name, (p,)) for name, p in parameters)
        # A gradient may be a view of a bucket of many gradients: the first one counts the whole bucket.
        # Not added to ``count``: gradients are freed, and other tensors may get their memory.
        self.held_gradients_bytes = 0
        for owner, held in gradients_by_module(module, device).items():
            by_module[owner]["gradients_bytes"] = held
            self.held_gradients_bytes += held
        self.buffers_bytes = sum(add("buffers_bytes", name, (b,)) for name, b in module_walk.named_buffers(module))
        self.optimizer_bytes = 0
        names = {id(p): name for name, p in parameters}
        unwrapped = [plain.attributes(optimizer).get("optimizer", optimizer) for optimizer in optimizers]
        states = [module_walk.states_of(optimizer) for optimizer in unwrapped]
        for of_one in states:
            for parameter, state in of_one:
                name = names.get(id(parameter), "")
                self.optimizer_bytes += add("optimizer_bytes", name, tensors_in(state))
        self.expected_optimizer = None if any(states) else _expected_states(unwrapped)
        self.copies_bytes = sum(
            count.add((*module_walk.parameters(copy), *module_walk.buffers(copy))) for copy in copies
        )
        self.batch_bytes = None if batch is None else count.add(tensors_in(batch, left=search_limit()))
        self.expected_gradients_bytes = sum(_local_bytes(p) for _, p in parameters if p.requires_grad)
        self._by_module = by_module

    def record(self, saved: SavedTensors | None = None) -> Breakdown:
        """Return the breakdown, with the activations that ``saved`` counted if it is not None."""
        held = self.held_gradients_bytes
        optimizer_bytes, basis = self.expected_optimizer or (self.optimizer_bytes, "held")
        counted = saved if saved is not None and not saved.failure else None
        modules = []
        for name, parts in self._by_module.items():
            activations = None if counted is None else counted.by_module.get(name, 0)
            if any(parts.values()) or activations:
                modules.append(ModuleMemory(name=name, activations_bytes=activations, **parts))
        modules.sort(key=lambda m: -(m.parameters_bytes + m.optimizer_bytes + (m.activations_bytes or 0)))
        return Breakdown(
            device=self.count.device,
            parameters_bytes=self.parameters_bytes,
            gradients_bytes=held or self.expected_gradients_bytes,
            gradients_basis="held" if held else "expected",
            optimizer_bytes=optimizer_bytes,
            optimizer_basis=basis,
            buffers_bytes=self.buffers_bytes,
            copies_bytes=self.copies_bytes,
            batch_bytes=self.batch_bytes,
            activations_bytes=None if counted is None else counted.n_bytes,
            activations_basis="no forward pass was sampled" if saved is None else saved.failure or "saved tensors",
            modules=tuple(modules[:_MAX_MODULES]),
            elsewhere_bytes=self.count.elsewhere_bytes,
        )


def gradients_by_module(module: nn.Module, device: Any) -> dict[str, int]:
    """Return bytes of the current gradients by top-level module; tied or bucketed memory counts once."""
    count = StorageCount(device)
    modules = top_level_modules(module)
    held: dict[str, int] = {}
    for name, parameter in module_walk.named_parameters(module):
        owner = containing_module(name, modules)
        held[owner] = held.get(owner, 0) + count.add((plain.gradient_of(parameter),))
    return held


def with_gradients(record: Breakdown, held: dict[str, int]) -> Breakdown:
    """Return the breakdown with the gradients held at another moment of the step."""
    if not any(held.values()):
        return record
    replace = msgspec.structs.replace
    modules = tuple(replace(m, gradients_bytes=held.get(m.name, 0)) for m in record.modules)
    return replace(record, gradients_bytes=sum(held.values()), gradients_basis="held", modules=modules)


def with_peak(record: Breakdown, peak_allocated: int, peak_reserved: int) -> Breakdown:
    """Return the breakdown of the device's peak, including the part that no known content explains.

    If activations were not measured, that part counts as activations.
    """
    rest = max(0, peak_allocated - record.parts_bytes)
    activations, basis = record.activations_bytes, record.activations_basis
    if activations is None:
        activations, basis, rest = rest, "rest of the peak", 0
    return msgspec.structs.replace(
        record,
        activations_bytes=activations,
        activations_basis=basis,
        peak_bytes=peak_allocated,
        rest_bytes=rest,
        cache_bytes=max(0, peak_reserved - peak_allocated),
    )


def modules_held_by(callbacks: Iterable[Any], module: nn.Module) -> list[nn.Module]:
    """Return modules that callbacks hold besides the one that trains."""
    own = set(map(id, module_walk.modules(module)))
    values = (value for callback in callbacks for value in plain.attributes(callback).values())
    return list({id(v): v for v in values if plain.is_a(v, nn.Module) and id(v) not in own}.values())


def _local_bytes(parameter: torch.Tensor) -> int:
    """Return the bytes of this parameter's gradient on this rank."""
    if plain.is_lazy(parameter) or not plain.is_readable_tensor(parameter):
        return 0
    if plain.has_class_attribute(type(parameter), "__tensor_flatten__"):
        return sum(storage.n_bytes for storage in storages_of(parameter))
    with plain.without_overrides():
        return parameter.numel() * parameter.element_size()


def _expected_states(optimizers: Sequence[Any]) -> tuple[int | None, str] | None:
    """Return the bytes of optimizers without states, with the basis; None if there is no optimizer."""
    total = 0.0
    for optimizer in optimizers:
        is_torchs = type(optimizer).__module__.startswith("torch.")
        factor = STATE_FACTORS.get(type(optimizer).__name__) if is_torchs else None
        if factor is None:
            return None, f"{type(optimizer).__name__} has made no step yet, and the size of its states is unknown"
        for group in optimizer.param_groups:
            total += factor(group) * sum(_local_bytes(p) for p in group["params"] if p.requires_grad)
    return (int(total), "expected") if optimizers else None


def headroom_of(
    breakdown: Breakdown | None,
    device: DeviceMemory | None,
    host: HostMemory,
    batch_size: int | None,
    sizes: Sequence[tuple[int, int]],
) -> Headroom | None:
    """Return the largest batch that should fit; None if that is unknown.

    ``sizes`` holds the number of samples and the bytes after the forward pass of sampled steps.
    """
    n = None if breakdown is None else breakdown.n_samples or batch_size
    if breakdown is None or not n:
        return None
    kept = (breakdown.activations_bytes or 0) + (breakdown.batch_bytes or 0)
    if device is not None:
        capacity, peak = device.total_bytes, device.peak_allocated_bytes
        line = fit_samples(sizes)
        if line is not None:
            basis, n_peak = "observed batches", max(size for size, _ in sizes)
            # The line is flat if the smaller batches had longer samples.
            per_sample = max(line[1], kept / n if breakdown.activations_basis == "saved tensors" else 0.0)
        else:
            held = breakdown.parameters_bytes + breakdown.gradients_bytes + (breakdown.optimizer_bytes or 0)
            held += breakdown.buffers_bytes + breakdown.copies_bytes
            basis, per_sample, n_peak = "one batch at the peak", (peak - held) / n, n
        fixed = int(peak - per_sample * n_peak)
    elif breakdown.device != "cpu":
        return None
    else:
        basis, capacity, per_sample = "saved tensors of one batch", host.limit_bytes, kept / n
        own = max(host.peak_rss_bytes or 0, host.rss_bytes) + host.workers_rss_bytes
        # A cgroup's figure also includes file cache, and usually no other programs.
        of_all = host.used_bytes if host.limit_basis == "machine" else None
        fixed = max(own, of_all or 0) - kept
    if not capacity or per_sample <= 0:
        return None
    return Headroom(
        device=breakdown.device,
        capacity_bytes=capacity,
        margin_fraction=HEADROOM_MARGIN,
        fixed_bytes=max(0, fixed),
        per_sample_bytes=per_sample,
        n_samples=n,
        largest_batch=largest_batch(capacity, HEADROOM_MARGIN, max(0, fixed), per_sample),
        basis=basis,
    )
