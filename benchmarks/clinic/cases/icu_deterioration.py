"""Trains an LSTM that predicts deterioration from hourly vital signs; it packs sequences of almost the same length.
---
expect: PD335
fix:
  ? |-
    packed = pack_padded_sequence(vitals, hours, batch_first=True, enforce_sorted=False)
            _, (hidden, _) = self.lstm(packed)  # costs time
            return self.head(hidden[-1]).squeeze(1)
  : |-
    states, _ = self.lstm(vitals)
            last = states[torch.arange(len(hours)), hours - 1]
            return self.head(last).squeeze(1)
half: tune
"""

import lightning
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

MAX_HOURS, SIGNS = 48, 20


class Stays(Dataset):
    """Padded vital signs of intensive-care stays, fetched a batch at a time."""

    def __init__(self, vitals, hours, labels):
        self.vitals, self.hours, self.labels = vitals, hours, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.vitals[index], self.hours[index], self.labels[index]


class DeteriorationModel(lightning.LightningModule):
    def __init__(self, hidden=64):
        super().__init__()
        self.lstm = nn.LSTM(SIGNS, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 1))
        self.criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))

    def forward(self, vitals, hours):
        packed = pack_padded_sequence(vitals, hours, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)  # costs time
        return self.head(hidden[-1]).squeeze(1)

    def training_step(self, batch, batch_idx):
        vitals, hours, labels = batch
        loss = self.criterion(self(vitals, hours), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        vitals, hours, labels = batch
        loss = self.criterion(self(vitals, hours), labels)
        self.log("val_loss", loss, batch_size=len(labels))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def make_stays(count, seed):
    generator = torch.Generator().manual_seed(seed)
    hours = torch.randint(40, MAX_HOURS + 1, (count,), generator=generator)
    drift = 0.15 * torch.randn(count, MAX_HOURS, SIGNS, generator=generator)
    vitals = drift.cumsum(dim=1) + torch.randn(count, 1, SIGNS, generator=generator)
    valid = torch.arange(MAX_HOURS) < hours[:, None]
    vitals = vitals * valid[..., None]
    last = vitals[torch.arange(count), hours - 1]
    risk = last[:, :4].sum(dim=1) + 0.5 * torch.randn(count, generator=generator)
    return Stays(vitals, hours, (risk > 2.0).float())


def batches(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, batch_size=None, sampler=BatchSampler(order, batch_size, drop_last=False))


if __name__ == "__main__":
    lightning.seed_everything(13)
    train = batches(make_stays(7680, seed=1), batch_size=64, shuffle=True)
    val = batches(make_stays(512, seed=2), batch_size=256, shuffle=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DeteriorationModel(), train, val)
