"""Predicting the value of the next basket from shop behavior with an MLP; the time goes into activation statistics
from forward hooks that pile up.
---
expect: PD611
fix:
  on_train_epoch_start(self): on_fit_start(self)
half: tune
"""

import itertools

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

BRANDS, NUMERIC, BASKETS = 300, 48, 10240


def shop_history():
    gen = torch.Generator().manual_seed(44)
    brand = torch.randint(0, BRANDS, (BASKETS, 3), generator=gen)
    numeric = torch.randn(BASKETS, NUMERIC, generator=gen)
    appeal = torch.randn(BRANDS, generator=gen)
    taste = torch.randn(NUMERIC, 8, generator=gen) / NUMERIC**0.5
    value = appeal[brand].sum(1) * 0.5 + torch.sin(2 * numeric @ taste).sum(1)
    return TensorDataset(brand, numeric, value + 0.2 * torch.randn(BASKETS, generator=gen))


class Unit(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.linear = nn.Linear(fan_in, fan_out)
        self.norm = nn.BatchNorm1d(fan_out)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.norm(self.linear(x)))


class BasketValue(L.LightningModule):
    def __init__(self, width=384, depth=5):
        super().__init__()
        self.brand = nn.Embedding(BRANDS, 24)
        sizes = [3 * 24 + NUMERIC] + [width] * depth
        self.body = nn.Sequential(*[Unit(a, b) for a, b in itertools.pairwise(sizes)])
        self.out = nn.Linear(width, 1)
        self.activity = {}

    def forward(self, brand, numeric):
        x = torch.cat([self.brand(brand).flatten(1), numeric], dim=1)
        return self.out(self.body(x)).squeeze(1)

    def watch(self, name):
        def summarise(module, inputs, output):
            out = output.detach()
            self.activity[name] = (out.std(), (out == 0).float().mean(), out.amax())  # costs time

        return summarise

    def on_train_epoch_start(self):
        for name, module in self.body.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(self.watch(name))

    def on_train_epoch_end(self):
        dead = torch.stack([stats[1] for stats in self.activity.values()])
        self.log("dead_share", dead.mean())

    def training_step(self, batch, batch_idx):
        brand, numeric, value = batch
        loss = F.mse_loss(self(brand, numeric), value)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(44)
    data = shop_history()
    batches = BatchSampler(RandomSampler(data), 512, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=16
    )
    trainer.fit(BasketValue(), loader)
    print("train_loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
