"""Runs of one training, as sessions: simulated, with settings."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from benchmarks.comparison.simulated_sessions import simulated
from lightning_perf.records import (
    LoaderSettings,
    Machine,
    ModelSettings,
    OptimizerSettings,
    Provenance,
    Session,
    Settings,
    TorchSettings,
    TrainerSettings,
)

VERSIONS = {"torch": "2.9.0", "lightning": "2.6.0"}


def run(
    n: int,
    *,
    loader: Any = (),
    trainer: Any = (),
    torch: Any = (),
    machine: Any = (),
    provenance: Any = (),
    **kind: Any,
) -> Session:
    """Return the n-th run of a training, with some settings changed; other arguments are those of ``simulated``."""
    loaders = {"stage": "train", "index": 0, "class_name": "DataLoader", "is_plain": True, "batch_size": 32,
               "num_workers": 8, **dict(loader)}  # fmt: skip
    optimizer = OptimizerSettings(class_name="Adam", implementation="foreach", n_tensors=2, n_elements=9)
    settings = Settings(
        trainer=TrainerSettings(**{"precision": "bf16-mixed", "log_every_n_steps": 50, **dict(trainer)}),
        loaders=(LoaderSettings(**loaders),),
        model=ModelSettings(class_name="Net", layers={"Linear": 2}, optimizers=(optimizer,)),
        torch=TorchSettings(**{"n_threads": 8, **dict(torch)}),
    )
    host = {"os": "Linux", "python": "3.11", "cpu_model": "made up", "usable_cores": 8.0, "versions": VERSIONS}
    known = {"parameters": "p", "sample_shapes": ("3x32x32", ""), "commit": "a" * 40, "branch": "main"}
    session = simulated(
        n,
        settings=settings,
        machine=Machine(**{**host, **dict(machine)}),
        provenance=Provenance(**{**known, **dict(provenance)}),
        **kind,
    )
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + 3600 * n))
    return msgspec.structs.replace(session, run=msgspec.structs.replace(session.run, started_at=started))
