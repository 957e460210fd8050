"""Recognizes gases from the response curves of a drifting sensor array with a recurrent network. The windows are cut
and scaled once before the training and stay in memory, and whole batches are taken from the tensors by index.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

SENSORS, STEPS, GASES = 16, 48, 6


class SensorWindows(Dataset):
    """Response curves; an index may be a list, which gives a whole batch."""

    def __init__(self, windows, seed):
        gen = torch.Generator().manual_seed(seed)
        affinity = torch.rand(GASES, SENSORS, generator=torch.Generator().manual_seed(1234))
        self.gas = torch.randint(0, GASES, (windows,), generator=gen)
        rise = 1 - torch.exp(-torch.linspace(0, 4, STEPS)[None, :, None] * (0.3 + affinity[self.gas][:, None, :]))
        dose = 0.5 + torch.rand(windows, 1, 1, generator=gen)
        drift = torch.randn(windows, 1, SENSORS, generator=gen) * torch.linspace(0, 0.3, STEPS)[None, :, None]
        curves = dose * affinity[self.gas][:, None, :] * rise + drift
        curves = curves + 0.15 * torch.randn(windows, STEPS, SENSORS, generator=gen)
        self.curves = (curves - curves.mean()) / curves.std()

    def __len__(self):
        return len(self.gas)

    def __getitem__(self, index):
        return self.curves[index], self.gas[index]


def batches(dataset, size, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


class GasNet(L.LightningModule):
    def __init__(self, hidden=128, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.rnn = nn.GRU(SENSORS, hidden, batch_first=True)
        self.head = nn.Linear(hidden, GASES)

    def forward(self, curves):
        _, last = self.rnn(curves)
        return self.head(last[-1])

    def training_step(self, batch, batch_idx):
        curves, gas = batch
        loss = nn.functional.cross_entropy(self(curves), gas)
        self.log("train_loss", loss, batch_size=len(gas))
        return loss

    def validation_step(self, batch, batch_idx):
        curves, gas = batch
        hit = (self(curves).argmax(dim=1) == gas).float().mean()
        self.log("val_accuracy", hit, batch_size=len(gas))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(5)
    train = SensorWindows(6400, seed=1)
    val = SensorWindows(512, seed=2)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=6,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(GasNet(), batches(train, 128, shuffle=True), batches(val, 256, shuffle=False))
    metrics = {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}
    print(metrics)


if __name__ == "__main__":
    main()
