"""Masked modelling of diagnosis codes in patient records with a small transformer; the time goes into predicting
codes at positions that the loss ignores.
---
expect: PD325
fix:
  self.head(hidden): self.head(hidden[target != -100])
  F.cross_entropy(scores.flatten(0, 1), target.flatten()): F.cross_entropy(scores, target[target != -100])
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

CODES, VISITS, MASK = 2400, 48, 0


def patient_records(count):
    gen = torch.Generator().manual_seed(31)
    condition = torch.randint(0, 60, (count, 1), generator=gen)
    second = torch.randint(0, 60, (count, 1), generator=gen)
    pick = torch.rand(count, VISITS, generator=gen) < 0.6
    family = torch.where(pick, condition, second)
    detail = (torch.rand(count, VISITS, generator=gen).pow(3) * 39).long()
    return 1 + family * 39 + detail


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.merge(attended.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


class RecordModel(L.LightningModule):
    def __init__(self, width=96, depth=2):
        super().__init__()
        self.embed = nn.Embedding(CODES, width)
        self.place = nn.Parameter(0.02 * torch.randn(VISITS, width))
        self.layers = nn.Sequential(*[Layer(width, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CODES)

    def forward(self, codes):
        return self.norm(self.layers(self.embed(codes) + self.place))

    def training_step(self, batch, batch_idx):
        (codes,) = batch
        hide = torch.rand(codes.shape, device=codes.device) < 0.15
        target = codes.masked_fill(~hide, -100)
        hidden = self(codes.masked_fill(hide, MASK))
        scores = self.head(hidden)  # costs time
        loss = F.cross_entropy(scores.flatten(0, 1), target.flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warmup, "interval": "step"}}


def main():
    L.seed_everything(31)
    data = TensorDataset(patient_records(3600))
    batches = BatchSampler(RandomSampler(data), 24, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=2
    )
    trainer.fit(RecordModel(), loader)
    print("train_loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
