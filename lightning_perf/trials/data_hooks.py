"""Callback hooks of the modes ``data`` and ``ceiling``."""

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch.utils._pytree import tree_leaves, tree_map

from lightning_perf import seams
from lightning_perf.probes.loader.iterate import iterate_loader, time_pinning
from lightning_perf.probes.loader.prober import MIN_LIMIT_S, LoaderProber
from lightning_perf.probes.probe_set import new_run
from lightning_perf.probes.settings.machine import local_world_size, read_machine
from lightning_perf.probes.settings.probe import read_settings
from lightning_perf.records import LoaderProbe, Session
from lightning_perf.rules.wording import duration

ITERATING_SHARE = 0.4
"""Fraction of the probe's time for a loader that cannot be copied and is only iterated."""
MANY_BATCHES = 10**6
"""Length of the loader of one batch: no epoch ends within the measured steps."""


class DataProbeHooks:
    """Probes the training loaders once they are prepared, before they are iterated; then ends ``fit``.

    Args:
        limit_s: Seconds that the probe may take, divided equally among several loaders.
        finish: Called on every rank, with the session on rank 0 and None on the others.
        compute_s: Seconds that a batch computes; None if unknown.
    """

    def __init__(
        self, limit_s: float, finish: Callable[[Session | None], None], compute_s: float | None = None
    ) -> None:
        super().__init__()
        self.limit_s = limit_s
        self.finish = finish
        self.compute_s = compute_s
        self.probe: LoaderProbe | None = None
        self._undos = seams.Undos()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if getattr(stage, "value", stage) == "fit":
            self._started_s = time.monotonic()
            seams.tap_train_loaders_ready(trainer, lambda loaders: self._probe(trainer, loaders), self._undos)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._undos.close()
        self.finish(self._session(trainer, pl_module) if trainer.is_global_zero else None)
        seams.stop_fit(trainer)

    def _probe(self, trainer: Any, loaders: list[Any]) -> None:
        """Probe each loader; keep the probe of the slowest one."""
        if not loaders or not trainer.is_global_zero:
            return
        probed = loaders[: max(1, int(self.limit_s / MIN_LIMIT_S))]
        limit_s = self.limit_s / len(probed)
        probes = [self._probe_one(trainer, loader, index, limit_s) for index, loader in enumerate(probed)]
        slowest = max(probes, key=lambda probe: batch_cost_s(probe) or 0.0)
        if len(loaders) > 1:
            others = [_described(probe) for probe in probes if probe is not slowest]
            others += [
                f"loader {index}: not probed, because time ran out" for index in range(len(probes), len(loaders))
            ]
            text = f"the Trainer combines {len(loaders)} training loaders; this is the slowest. " + "; ".join(others)
            slowest = msgspec.structs.replace(slowest, missing={**slowest.missing, "others": text})
        self.probe = slowest

    def _probe_one(self, trainer: Any, loader: Any, index: int, limit_s: float) -> LoaderProbe:
        is_cpu = trainer.strategy.root_device.type == "cpu"
        threads = max(1, min(torch.get_num_threads(), int(read_machine().usable_cores))) if is_cpu else 1
        load = None if self.compute_s is None else (self.compute_s, threads)
        prober = LoaderProber(limit_s, local_world_size=local_world_size(trainer), load=load)
        try:
            probe = prober.start(loader, index=index) or prober.wait()
        finally:
            prober.close()
        probe = probe or prober.poll()
        assert probe is not None
        if probe.status == "refused":
            probe = iterate_loader(loader, probe, ITERATING_SHARE * limit_s)
        return time_pinning(probe, trainer.strategy.root_device)

    def _session(self, trainer: Any, pl_module: Any) -> Session:
        settings, missing = read_settings(trainer, pl_module)
        probe = self.probe
        missing["steady"] = "nothing was trained"
        if probe is None:
            missing["loader_probe"] = "Lightning prepared no training loader"
        wall_s, world_size = time.monotonic() - self._started_s, trainer.world_size
        return Session(
            run=msgspec.structs.replace(new_run("data"), status="finished", wall_s=wall_s, world_size=world_size),
            machine=read_machine(local_world_size=local_world_size(trainer), device=trainer.strategy.root_device),
            settings=settings,
            loader_probe=probe,
            missing=missing,
        )


def batch_cost_s(probe: LoaderProbe) -> float | None:
    """Return the seconds between batches with the loader's own workers, else with the fewest; None if unknown."""
    point = probe.point_at(probe.num_workers) or next(iter(probe.curve), None)
    return probe.made_s() if point is None else point.batch_s


def _described(probe: LoaderProbe) -> str:
    cost_s = batch_cost_s(probe)
    return f"loader {probe.index}: " + (
        probe.reason or "not known" if cost_s is None else f"{duration(cost_s)} per batch"
    )


class OneBatchHooks:
    """Replaces the training loader by one that repeats its first batch."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if getattr(stage, "value", stage) == "fit":
            seams.tap_train_loaders(trainer, one_batch_of, seams.Undos())


class OneBatch:
    """A loader that repeats one batch."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self._kept: dict[torch.Tensor, tuple[torch.Tensor, int]] = {
            leaf: (leaf.detach().clone(), leaf._version)
            for leaf in tree_leaves(batch)
            if isinstance(leaf, torch.Tensor) and not leaf.is_inference()
        }

    def __iter__(self) -> Iterator[Any]:
        # The same tensors in new containers, because a step may change these.
        return (tree_map(self._unchanged, self.batch) for _ in range(MANY_BATCHES))

    def _unchanged(self, leaf: Any) -> Any:
        """Return a tensor as it was, also if a step normalized it in place; a copy of a library's batch."""
        if not isinstance(leaf, torch.Tensor):
            return copy.copy(leaf) if hasattr(leaf, "__dict__") else leaf
        before, version = self._kept.get(leaf, (leaf, None))
        if version is not None and leaf._version != version:
            with torch.no_grad():
                leaf.copy_(before)
            self._kept[leaf] = before, leaf._version
        return leaf


class SizedOneBatch(OneBatch):
    """A loader with a length that repeats one batch."""

    def __len__(self) -> int:
        return MANY_BATCHES


def one_batch_of(loader: Any) -> OneBatch:
    """Return a loader that repeats the first batch of another one; the workers of that one end."""
    # Persistent workers would belong to the loader, and make further batches beside the steps.
    batches = iter(copy.copy(loader) if getattr(loader, "persistent_workers", False) else loader)
    batch = next(batches)
    del batches
    try:
        len(loader)
    except TypeError:
        return OneBatch(batch)
    return SizedOneBatch(batch)
