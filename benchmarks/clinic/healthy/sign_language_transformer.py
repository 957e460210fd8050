"""Recognizes signs from hand keypoints over time with a pre-norm transformer in bfloat16. All clips have the same
length, so nothing is padded, and attention uses PyTorch's fused kernel.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

SIGNS, FRAMES, KEYPOINTS = 30, 64, 42


def keypoint_clips(clips, seed):
    """Smooth hand paths, one family of paths for each sign."""
    family = torch.Generator().manual_seed(777)
    swing = torch.randn(SIGNS, 3, 2 * KEYPOINTS, generator=family)
    gen = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, SIGNS, (clips,), generator=gen)
    pace = 1 + 0.3 * torch.randn(clips, 1, 1, generator=gen)
    time = torch.linspace(0, 2 * torch.pi, FRAMES)[None, :, None] * pace
    waves = torch.cat([torch.sin(time), torch.cos(2 * time), torch.sin(3 * time)], dim=2)
    path = waves @ swing[sign] + 0.8 * torch.randn(clips, FRAMES, 2 * KEYPOINTS, generator=gen)
    return path / path.std(), sign


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class SignNet(L.LightningModule):
    def __init__(self, dim=192, heads=4, layers=2, lr=5e-4):
        super().__init__()
        self.lr = lr
        self.embed = nn.Linear(2 * KEYPOINTS, dim)
        self.position = nn.Parameter(torch.randn(FRAMES, dim) * 0.02)
        self.layers = nn.Sequential(*(Layer(dim, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, SIGNS))

    def forward(self, path):
        return self.head(self.layers(self.embed(path) + self.position).mean(dim=1))

    def training_step(self, batch, batch_idx):
        path, sign = batch
        loss = F.cross_entropy(self(path), sign)
        self.log("train_loss", loss, batch_size=len(sign))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.05, fused=True)


def main():
    L.seed_everything(29)
    data = TensorDataset(*keypoint_clips(1600, seed=6))
    sampler = BatchSampler(RandomSampler(data), 32, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SignNet(), loader)
    print("train_loss", round(float(trainer.callback_metrics["train_loss"]), 4))


if __name__ == "__main__":
    main()
