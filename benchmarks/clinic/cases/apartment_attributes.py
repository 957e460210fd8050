"""A shared network with five heads learns rent, size class, condition, time on the market and number of inquiries of
apartments from their listing's features. The five losses are propagated back one after the other.
---
expect: PD331
fix:
  ? |2-
            for loss in losses.values():
                self.manual_backward(loss, retain_graph=True)  # costs time
  : |2-
            self.manual_backward(sum(losses.values()))
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

FEATURES, CLASSES = 120, {"size": 6, "condition": 4}


class ApartmentModel(L.LightningModule):
    def __init__(self, width=512, depth=4):
        super().__init__()
        self.automatic_optimization = False  # trunk and heads have an optimizer each
        layers, inputs = [], FEATURES
        for _ in range(depth):
            layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.GELU()]
            inputs = width
        self.trunk = nn.Sequential(*layers)
        sizes = {"rent": 1, "days": 1, "inquiries": 1, **CLASSES}
        self.heads = nn.ModuleDict({name: nn.Linear(width, size) for name, size in sizes.items()})

    def forward(self, x):
        shared = self.trunk(x)
        return {name: head(shared).squeeze(-1) for name, head in self.heads.items()}

    def task_losses(self, batch):
        x, rent, days, inquiries, size, condition = batch
        out = self(x)
        return {
            "rent": F.smooth_l1_loss(out["rent"], rent),
            "days": F.mse_loss(out["days"], days),
            "inquiries": F.poisson_nll_loss(out["inquiries"], inquiries),
            "size": F.cross_entropy(out["size"], size),
            "condition": F.cross_entropy(out["condition"], condition),
        }

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        losses = self.task_losses(batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        for loss in losses.values():
            self.manual_backward(loss, retain_graph=True)  # costs time
        for optimizer in optimizers:
            optimizer.step()
        self.log("train_loss", sum(losses.values()).detach())

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def validation_step(self, batch, batch_idx):
        losses = self.task_losses(batch)
        self.log("val_loss", sum(losses.values()), prog_bar=True)

    def configure_optimizers(self):
        trunk = torch.optim.AdamW(self.trunk.parameters(), lr=5e-4, weight_decay=1e-2)
        heads = torch.optim.SGD(self.heads.parameters(), lr=3e-4, momentum=0.9)
        return [trunk, heads], [torch.optim.lr_scheduler.ExponentialLR(trunk, gamma=0.8)]


def make_listings(count, generator):
    x = torch.randn(count, FEATURES, generator=generator)
    hidden = torch.tanh(x @ torch.randn(FEATURES, 5, generator=torch.Generator().manual_seed(0)) / FEATURES**0.5)
    size = torch.bucketize(hidden[:, 3], torch.linspace(-0.7, 0.7, CLASSES["size"] - 1))
    condition = torch.bucketize(hidden[:, 4], torch.linspace(-0.5, 0.5, CLASSES["condition"] - 1))
    counts = torch.poisson(2 * hidden[:, 2].exp(), generator=generator)
    return TensorDataset(x, hidden[:, 0], hidden[:, 1], counts, size, condition)


def batches(dataset, size, shuffle=False):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(11)
    generator = torch.Generator().manual_seed(11)
    train, val = make_listings(6400, generator), make_listings(1024, generator)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False)
    trainer.fit(ApartmentModel(), batches(train, 128, shuffle=True), batches(val, 256))
