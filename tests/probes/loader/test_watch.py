"""When the training loader is measured."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from lightning_perf.probes.loader.watch import LoaderWatch, has_stopped
from lightning_perf.records import LoaderSettings, Settings, TorchSettings
from tests.probes.ranks.synthetic import steady


@pytest.mark.parametrize(
    ("patience", "n_waits", "epoch", "expected"),
    [(2, 1, 0, False), (2, 2, 0, True), (0, 0, 0, False), (0, 1, 0, True), (2, 0, 3, True)],
)
def test_early_stopping_has_ended_the_training_when_patience_ran_out_in_any_epoch(
    patience: int, n_waits: int, epoch: int, expected: bool
) -> None:
    stopping = EarlyStopping("loss", patience=patience)
    stopping.wait_count, stopping.stopped_epoch = n_waits, epoch
    assert has_stopped(stopping) == expected


@pytest.mark.parametrize("probe_data", [True, "auto"])
def test_a_loader_that_is_no_dataloader_is_the_reason_that_it_is_not_measured(probe_data: bool | str) -> None:
    refusal = "Batches is not a torch.utils.data.DataLoader"
    loader = LoaderSettings(stage="train", index=0, class_name="Batches", is_plain=False, refusal=refusal)
    probes = SimpleNamespace(find=lambda kind: None)
    run = SimpleNamespace(
        trainer=None, loop=None, probe_data=probe_data, settings=Settings(loaders=(loader,)), probes=probes
    )
    assert LoaderWatch(run).reasons() == {"loader_probe": refusal}


def test_load_divides_waits_by_all_steps_when_epochs_are_short() -> None:
    times = msgspec.structs.replace(steady(data_wait=0.004, forward=0.006), n_steps=50, n_first_steps=50)
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")))
    run = SimpleNamespace(
        trainer=trainer,
        loop=None,
        probe_data=True,
        settings=Settings(torch=TorchSettings(n_threads=1)),
        probes=SimpleNamespace(find=lambda kind: None),
    )
    assert LoaderWatch(run)._load(times) == (pytest.approx(0.006), 1)
