"""What the modes ``data`` and ``ceiling`` do inside ``Trainer.fit``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from lightning_perf import __version__, seams
from lightning_perf.probes.loader import LoaderProber, time_passing, time_pinning
from lightning_perf.probes.machine import read_machine
from lightning_perf.probes.recorder import local_world_size
from lightning_perf.probes.settings import read_settings
from lightning_perf.records import LoaderProbe, Run, Session

PASSING_SHARE = 0.4
"""Of the probe's time: for a loader that cannot be taken apart and is timed as it is."""
MANY_BATCHES = 10**6
"""Length of the loader of one batch: no epoch of the few steps ends."""


class DataProbeHooks:
    """Probes the training loader when Lightning has prepared it and nothing iterates it yet; then ends the fit.

    Args:
        limit_s: Seconds that the probe may take.
        finish: Called on every rank, with the session on rank 0 and None on the others.
    """

    def __init__(self, limit_s: float, finish: Callable[[Session | None], None]) -> None:
        super().__init__()
        self.limit_s = limit_s
        self.finish = finish
        self.probe: LoaderProbe | None = None
        self.n_loaders = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before any loader is made."""
        if getattr(stage, "value", stage) == "fit":
            self._started_s = time.monotonic()
            self._undo = seams.tap_train_loaders(trainer, lambda loader: self._probe(trainer, loader))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """All settings can be read; nothing is trained."""
        self._undo()
        self.finish(self._session(trainer, pl_module) if trainer.is_global_zero else None)
        seams.stop_fit(trainer)

    def _probe(self, trainer: Any, loader: Any) -> Any:
        self.n_loaders += 1
        if self.probe is None and trainer.is_global_zero:
            self.probe = self._measured(trainer, loader)
        return loader

    def _measured(self, trainer: Any, loader: Any) -> LoaderProbe:
        prober = LoaderProber(self.limit_s, local_world_size=local_world_size(trainer))
        try:
            probe = prober.start(loader) or prober.wait()
        finally:
            prober.close()
        probe = probe or prober.poll()
        assert probe is not None
        if probe.status == "refused":
            probe = time_passing(loader, probe, PASSING_SHARE * self.limit_s)
        return time_pinning(probe, trainer.strategy.root_device)

    def _session(self, trainer: Any, pl_module: Any) -> Session:
        settings, missing = read_settings(trainer, pl_module)
        probe = self.probe
        missing["steady"] = "nothing was trained"
        if probe is None:
            missing["loader_probe"] = "Lightning prepared no training loader"
        elif self.n_loaders > 1:
            told = f"the Trainer combines {self.n_loaders} training loaders; this is the first of them"
            probe = msgspec.structs.replace(probe, missing={**probe.missing, "others": told})
        return Session(
            run=Run(
                id=f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-data-{uuid.uuid4().hex[:8]}",
                stage="data",
                status="finished",
                started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                wall_s=time.monotonic() - self._started_s,
                world_size=trainer.world_size,
                lightning_perf=__version__,
            ),
            machine=read_machine(local_world_size=local_world_size(trainer), device=trainer.strategy.root_device),
            settings=settings,
            loader_probe=probe,
            missing=missing,
        )


class OneBatchHooks:
    """Lets the training have one batch, again and again, instead of its loader."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before any loader is made."""
        if getattr(stage, "value", stage) == "fit":
            seams.tap_train_loaders(trainer, one_batch_of)


class OneBatch:
    """A loader of one batch that is at hand, over and over."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Any]:
        return (_fresh(self.batch) for _ in range(MANY_BATCHES))


class SizedOneBatch(OneBatch):
    """One whose length is known."""

    def __len__(self) -> int:
        return MANY_BATCHES


def one_batch_of(loader: Any) -> OneBatch:
    """A loader of the first batch of another, whose workers end here."""
    batches = iter(loader)
    batch = next(batches)
    del batches
    try:
        len(loader)
    except TypeError:
        return OneBatch(batch)
    return SizedOneBatch(batch)


def _fresh(batch: Any) -> Any:
    """The same tensors in new containers: a step may take things out of them."""
    if type(batch) is dict:
        return {name: _fresh(value) for name, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_fresh(value) for value in batch)
    return batch
