"""A causal transformer learns to continue synthetic folk melodies written as note tokens.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
NOTES, LENGTH = 50, 64


def make_melodies(n, seed):
    """Random walks over a scale; every melody repeats its phrase of eight notes, sometimes transposed."""
    g = torch.Generator().manual_seed(seed)
    steps = torch.randint(-2, 3, (n, 8), generator=g)
    phrase = steps.cumsum(1) + torch.randint(15, 35, (n, 1), generator=g)
    shift = torch.randint(0, 3, (n, LENGTH // 8 + 1), generator=g) * 2
    tune = (phrase[:, None] + shift[:, :, None]).flatten(1)[:, : LENGTH + 1]
    wrong = torch.rand(tune.shape, generator=g) < 0.03
    other = torch.randint(0, NOTES, tune.shape, generator=g)
    return TensorDataset(torch.where(wrong, other, tune).clamp(0, NOTES - 1))


def loader(data, size, shuffle):
    order = RandomSampler(data) if shuffle else range(len(data))
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_a(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm_b(x))


class MelodyModel(L.LightningModule):
    def __init__(self, d=96, heads=4, layers=2):
        super().__init__()
        self.note = nn.Embedding(NOTES, d)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, d))
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, NOTES)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.note(tokens) + self.place)))

    def loss(self, tune):
        logits = self(tune[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tune[:, 1:].flatten())

    def training_step(self, batch, _):
        loss = self.loss(batch[0])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch[0]), batch_size=len(batch[0]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3, fused=True)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(91)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=3,
        gradient_clip_val=1.0,
    )
    trainer.fit(MelodyModel(), loader(make_melodies(2000, 1), 20, True), loader(make_melodies(256, 2), 64, False))
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
