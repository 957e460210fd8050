"""When the training loader is measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import EarlyStopping

from lightning_perf.probes.loader.watch import LoaderWatch, has_stopped
from lightning_perf.records import LoaderSettings, Settings


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
