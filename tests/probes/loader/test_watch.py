"""When the training loader is measured."""

from __future__ import annotations

import pytest
from lightning.pytorch.callbacks import EarlyStopping

from lightning_perf.probes.loader.watch import has_stopped


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
