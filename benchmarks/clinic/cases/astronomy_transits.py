"""A transformer finds planet transits in light curves; each attention layer also returns attention weights that nobody
reads.
---
expect: PD309
fix:
  "self.attention(h, h, h)": "self.attention(h, h, h, need_weights=False)"
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

CADENCES = 1024
PATCH = 4


def make_light_curves(n, seed):
    """Flux with red noise; half of the stars have a periodic box-shaped dip."""
    g = torch.Generator().manual_seed(seed)
    time = torch.arange(CADENCES).float()
    flux = 0.4 * torch.randn(n, CADENCES, generator=g)
    spot_period = 200 + 400 * torch.rand(n, 1, generator=g)
    flux += 0.5 * torch.sin(2 * torch.pi * time / spot_period + 6.28 * torch.rand(n, 1, generator=g))
    label = (torch.rand(n, generator=g) < 0.5).float()
    period = 60 + 150 * torch.rand(n, 1, generator=g)
    phase = (time / period + torch.rand(n, 1, generator=g)) % 1.0
    flux -= 1.5 * label[:, None] * (phase < 0.06).float()
    return TensorDataset(flux, label)


def loader(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        h = self.norm_attention(x)
        attended, _ = self.attention(h, h, h)  # costs time
        x = x + attended
        return x + self.mlp(self.norm_mlp(x))


class TransitFinder(lightning.LightningModule):
    def __init__(self, width=64, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Linear(PATCH, width)
        self.position = nn.Parameter(0.02 * torch.randn(CADENCES // PATCH, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, flux):
        tokens = self.embed(flux.unflatten(1, (-1, PATCH))) + self.position
        return self.head(self.blocks(tokens).mean(dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        flux, label = batch
        return F.binary_cross_entropy_with_logits(self(flux), label)

    def validation_step(self, batch, batch_idx):
        flux, label = batch
        logit = self(flux)
        self.log("val_loss", F.binary_cross_entropy_with_logits(logit, label), batch_size=len(label))
        self.log("val_acc", ((logit > 0) == (label > 0.5)).float().mean(), batch_size=len(label))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(7)
    train, val = make_light_curves(384, seed=1), make_light_curves(64, seed=2)
    model = TransitFinder()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(train, 8, shuffle=True), loader(val, 16, shuffle=False))
    print({name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
