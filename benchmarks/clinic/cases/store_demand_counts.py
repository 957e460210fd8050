"""A network predicts daily sales counts of 60 stores with a Poisson likelihood, and reports the deviance per store.
The mistake: each training step calls self.log once for every store.
---
expect: PD502
fix:
  ? |2
            for s in store.unique().tolist():
                own = deviance[store == s]
                self.log(f"deviance/{s}", own.mean(), on_step=False, on_epoch=True, batch_size=len(own))  # costs time
  : |2
            self.deviance_sum.index_add_(0, store, deviance)
            self.deviance_count.index_add_(0, store, torch.ones_like(deviance))
  ? |2
        def configure_optimizers(self):
  : |2
        def on_train_epoch_end(self):
            mean = (self.deviance_sum / self.deviance_count.clamp(min=1)).tolist()
            self.log_dict({f"deviance/{s}": value for s, value in enumerate(mean)})
            self.deviance_sum.zero_()
            self.deviance_count.zero_()

        def configure_optimizers(self):
  ? "        self.lr = lr\\n"
  : |2
            self.lr = lr
            self.register_buffer("deviance_sum", torch.zeros(STORES), persistent=False)
            self.register_buffer("deviance_count", torch.zeros(STORES), persistent=False)
half: score
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

STORES = 60
FEATURES = 40


class DemandNet(L.LightningModule):
    def __init__(self, hidden=384, lr=1e-3):
        super().__init__()
        self.store = nn.Embedding(STORES, 16)
        self.weekday = nn.Embedding(7, 8)
        self.net = nn.Sequential(
            nn.Linear(FEATURES + 24, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        self.lr = lr

    def forward(self, x, store, weekday):
        inputs = torch.cat([x, self.store(store), self.weekday(weekday)], dim=1)
        return self.net(inputs).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, store, weekday, count = batch
        log_rate = self(x, store, weekday)
        loss = nn.functional.poisson_nll_loss(log_rate, count)
        self.log("train_nll", loss)
        with torch.no_grad():
            deviance = 2 * (torch.xlogy(count, count) - count * log_rate - count + log_rate.exp())
        for s in store.unique().tolist():
            own = deviance[store == s]
            self.log(f"deviance/{s}", own.mean(), on_step=False, on_epoch=True, batch_size=len(own))  # costs time
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def make_sales(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=generator)
    store = torch.randint(0, STORES, (n,), generator=generator)
    weekday = torch.randint(0, 7, (n,), generator=generator)
    size = 0.5 * torch.randn(STORES, generator=generator)
    effect = 0.3 * torch.randn(FEATURES, generator=generator) / FEATURES**0.5
    log_rate = 1.0 + x @ effect + size[store] + 0.2 * (weekday >= 5)
    return TensorDataset(x, store, weekday, torch.poisson(log_rate.exp(), generator=generator))


if __name__ == "__main__":
    L.seed_everything(8)
    dataset = make_sales(35_840)
    sampler = BatchSampler(RandomSampler(dataset), batch_size=512, drop_last=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=CSVLogger(tempfile.mkdtemp(), name="demand"),
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(DemandNet(), loader)
