"""Trains a convolutional net on DNA enhancers with an exponential moving average of the weights kept by a callback.
---
half: score
"""

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

LENGTH = 200


class WeightAverage(Callback):
    """Moving average of the parameters, copied into the model when the training ends."""

    def __init__(self, decay=0.995):
        self.decay = decay

    def on_fit_start(self, trainer, pl_module):
        self.live = list(pl_module.parameters())
        self.average = [parameter.detach().clone() for parameter in self.live]

    @torch.no_grad()
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        torch._foreach_lerp_(self.average, self.live, 1.0 - self.decay)

    @torch.no_grad()
    def on_fit_end(self, trainer, pl_module):
        torch._foreach_copy_(self.live, self.average)


class EnhancerNet(lightning.LightningModule):
    """Motif convolution, pooling and two more convolutions; two outputs (developmental, housekeeping)."""

    def __init__(self, motifs=96):
        super().__init__()
        self.register_buffer("one_hot", torch.eye(5)[:, :4].contiguous())  # A, C, G, T and N (all zero)
        self.convolutions = nn.Sequential(
            nn.Conv1d(4, motifs, 11, padding=5),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(motifs, 96, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(5),
            nn.Conv1d(96, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64 * (LENGTH // 20), 128), nn.ReLU(), nn.Linear(128, 2))
        self.criterion = nn.MSELoss()

    def forward(self, bases):
        return self.head(self.convolutions(self.one_hot[bases.int()].transpose(1, 2)))

    def training_step(self, batch, batch_idx):
        bases, activity = batch
        loss = self.criterion(self(bases), activity)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def make_enhancers(count, seed):
    generator = torch.Generator().manual_seed(seed)
    bases = torch.randint(0, 4, (count, LENGTH), generator=generator, dtype=torch.uint8)
    planted = torch.rand(count, 2, generator=generator) < 0.5
    for column, motif in enumerate(([0, 1, 3, 3, 2, 0, 1], [2, 2, 0, 3, 1, 1, 3])):
        rows = planted[:, column].nonzero().squeeze(1)
        start = 40 + 80 * column
        bases[rows, start : start + 7] = torch.tensor(motif, dtype=torch.uint8)
    activity = planted.float() + 0.1 * torch.randn(count, 2, generator=generator)
    return TensorDataset(bases, activity)


if __name__ == "__main__":
    lightning.seed_everything(37)
    enhancers = make_enhancers(6400, seed=3)
    sampler = BatchSampler(RandomSampler(enhancers), batch_size=64, drop_last=True)
    loader = DataLoader(enhancers, batch_size=None, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        callbacks=[WeightAverage()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(EnhancerNet(), loader)
