"""Small vision transformer on synthetic texture images; the gradient norms of all parameters are computed and logged
one by one in every step.
---
expect: [PD502, PD504, PD507]
half: score
fix:
  '        norms = grad_norm(self.encoder, norm_type=2)  # costs time': |2-
            if self.global_step % self.trainer.log_every_n_steps != 0:
                return
            norms = grad_norm(self.encoder, norm_type=2)
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

IMAGE, PATCH, CLASSES = 32, 8, 10


def make_textures(n=1280):
    gen = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (n,), generator=gen)
    xs = torch.linspace(0, 6.28, IMAGE)
    angle = labels.float() * 3.1416 / CLASSES
    phase = torch.rand(n, 1, 1, generator=gen) * 6.28
    grid = torch.cos(angle)[:, None, None] * xs[None, :, None] + torch.sin(angle)[:, None, None] * xs[None, None, :]
    images = torch.sin(3 * grid + phase)[:, None].repeat(1, 3, 1, 1)
    images += 0.3 * torch.randn(images.shape, generator=gen)
    return images, labels


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attn = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.proj(attn)
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, dim=64, depth=4, heads=4):
        super().__init__()
        self.patchify = nn.Conv2d(3, dim, PATCH, stride=PATCH)
        self.pos = nn.Parameter(0.02 * torch.randn(1, (IMAGE // PATCH) ** 2, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, images):
        tokens = self.patchify(images).flatten(2).transpose(1, 2) + self.pos
        return self.norm(self.blocks(tokens)).mean(1)


class TextureViT(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(64, CLASSES)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.head(self.encoder(images)), labels)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        norms = grad_norm(self.encoder, norm_type=2)  # costs time
        self.log_dict({f"grads/{name}": value for name, value in norms.items()})  # costs time

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=0.05, fused=True)


if __name__ == "__main__":
    seed_everything(1)
    loader = DataLoader(TensorDataset(*make_textures()), batch_size=16, shuffle=True)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=CSVLogger("logs", name="texture_vit"),
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(TextureViT(), loader)
