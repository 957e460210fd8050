"""A network learns patients' hazard from clinical and gene expression features by Cox's partial likelihood within
batches, validated by the concordance index.
---
half: score
"""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

GENES = 400


def cox_loss(risk, time, event):
    """Negative log partial likelihood; after sorting by time, risk sets are prefixes."""
    order = time.argsort(descending=True)
    risk, event = risk[order], event[order]
    return ((torch.logcumsumexp(risk, dim=0) - risk) * event).sum() / event.sum().clamp(min=1)


def concordance(risk, time, event):
    comparable = (time[:, None] < time[None]) & (event[:, None] > 0)
    return (comparable & (risk[:, None] > risk[None])).sum() / comparable.sum()


class HazardModel(L.LightningModule):
    def __init__(self, width=512, dropout=0.2):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(GENES, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, 1),
        )
        self.outputs = []

    def forward(self, x):
        return self.net(x).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, time, event = batch
        loss = cox_loss(self(x), time, event)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, time, event = batch
        self.outputs.append((self(x), time, event))

    def on_validation_epoch_end(self):
        risk, time, event = (torch.cat(parts) for parts in zip(*self.outputs, strict=True))
        self.outputs.clear()
        self.log("val_concordance", concordance(risk, time, event), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, weight_decay=0.05)


def make_patients(count, generator):
    x = torch.randn(count, GENES, generator=generator)
    weight = torch.randn(GENES, generator=torch.Generator().manual_seed(1)) / 12
    hazard = (x @ weight + 0.5 * x[:, 0] * x[:, 1]).clamp(-4, 4).exp()
    death = -torch.rand(count, generator=generator).clamp(min=1e-6).log() / hazard
    censoring = 3 * torch.rand(count, generator=generator)
    return TensorDataset(x, torch.minimum(death, censoring), (death <= censoring).float())


def batches(dataset, size, shuffle=False):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(13)
    generator = torch.Generator().manual_seed(13)
    train, val = make_patients(16_000, generator), make_patients(1200, generator)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=8,
        logger=False,
        enable_checkpointing=False,
        callbacks=[EarlyStopping("val_concordance", mode="max", patience=8)],
    )
    trainer.fit(HazardModel(), batches(train, 256, shuffle=True), batches(val, 400))
