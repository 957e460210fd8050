"""A deep residual click model over hashed ad features is trained; the optimizer gets one parameter group for each
tensor.
---
expect: PD340
fix:
  'groups = [{"params": [p], "weight_decay": 0.0 if p.ndim < 2 else 0.01} for p in self.parameters()]': |-
    groups = [
                {"params": [p for p in self.parameters() if p.ndim >= 2], "weight_decay": 0.01},
                {"params": [p for p in self.parameters() if p.ndim < 2], "weight_decay": 0.0},
            ]
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

FIELDS = 16
BUCKETS = 500
DENSE = 13


def make_impressions(n, seed):
    """Hashed categorical ids and counters; clicks depend on a few hidden interactions."""
    g = torch.Generator().manual_seed(seed)
    ids = (torch.rand(n, FIELDS, generator=g).square() * BUCKETS).long()
    dense = torch.randn(n, DENSE, generator=g)
    taste = torch.randn(FIELDS, BUCKETS, generator=torch.Generator().manual_seed(0))
    effect = taste[torch.arange(FIELDS), ids]
    logit = 0.6 * effect[:, 0] * effect[:, 1] + 0.5 * effect[:, 2:6].sum(1) + dense[:, 0] * effect[:, 7] - 1.0
    click = (torch.rand(n, generator=g) < logit.sigmoid()).float()
    return TensorDataset(ids + BUCKETS * torch.arange(FIELDS), dense, click)


class ResidualUnit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class ClickModel(lightning.LightningModule):
    def __init__(self, embedding=8, width=32, depth=24, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.table = nn.Embedding(FIELDS * BUCKETS, embedding)
        nn.init.normal_(self.table.weight, std=0.05)
        self.project = nn.Linear(FIELDS * embedding + DENSE, width)
        self.units = nn.Sequential(*(ResidualUnit(width) for _ in range(depth)))
        self.click = nn.Linear(width, 1)

    def forward(self, ids, dense):
        x = torch.cat([self.table(ids).flatten(1), dense], dim=1)
        return self.click(self.units(self.project(x))).squeeze(1)

    def training_step(self, batch, batch_idx):
        ids, dense, click = batch
        return F.binary_cross_entropy_with_logits(self(ids, dense), click)

    def validation_step(self, batch, batch_idx):
        ids, dense, click = batch
        loss = F.binary_cross_entropy_with_logits(self(ids, dense), click)
        self.log("val_logloss", loss, batch_size=len(click))

    def configure_optimizers(self):
        # embeddings and matrices decay, biases and norms do not
        groups = [{"params": [p], "weight_decay": 0.0 if p.ndim < 2 else 0.01} for p in self.parameters()]  # costs time
        optimizer = torch.optim.AdamW(groups, lr=self.lr, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.lr, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    lightning.seed_everything(11)
    train, val = make_impressions(32_000, seed=1), make_impressions(4_000, seed=2)
    train_loader = DataLoader(train, sampler=BatchSampler(RandomSampler(train), 64, drop_last=True), batch_size=None)
    val_loader = DataLoader(val, sampler=BatchSampler(range(len(val)), 1000, drop_last=False), batch_size=None)
    model = ClickModel()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train_loader, val_loader)
    print(f"validation log loss {trainer.callback_metrics['val_logloss']:.4f}")


if __name__ == "__main__":
    main()
