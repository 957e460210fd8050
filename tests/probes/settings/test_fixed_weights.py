"""Weights that a fit does not change are found, among those that a checkpoint holds."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor

N = 2**18  # elements of a mebibyte


class Tuned(LightningModule):
    """A trained head, a table and a buffer that do not change, and a teacher that follows the head."""

    def __init__(self, unfreezes_at: int | None = None, follows: bool = False, is_persistent: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(N // 4, 4)
        self.table.requires_grad_(False)
        self.head = nn.Linear(4, 1)
        self.register_buffer("counts", torch.ones(N + 4), persistent=is_persistent)
        self.unfreezes_at, self.follows = unfreezes_at, follows

    def training_step(self, batch, batch_idx):
        if batch_idx == self.unfreezes_at:
            self.table.requires_grad_(True)
        if self.follows:
            self.table.weight.data.mul_(0.99)
        return self.head(self.table(batch[0])).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), 1e-3)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (8 * N + 16, "counts", True)),
        ({"is_persistent": False}, (4 * N, "table.weight", False)),
        ({"unfreezes_at": 2}, (4 * N + 16, "counts", True)),
        ({"follows": True}, (4 * N + 16, "counts", True)),
        ({"follows": True, "is_persistent": False}, None),
    ],
)
def test_large_weights_that_stay_are_found(arguments, expected, tmp_path):
    doctor = PerfDoctor(out_dir=tmp_path, console="off")
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, callbacks=[doctor])  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.randint(N // 4, (20, 3)))
    trainer.fit(Tuned(**arguments), DataLoader(data, batch_size=2))
    found = doctor.session.settings.model.fixed_weights
    assert (found and (found.n_bytes, found.largest, found.is_buffer)) == expected
