"""A small language model over characters: attention of two heads, texts of 48 characters, Adam, validated each epoch.
---
half: score
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(48), nn.LayerNorm(48)
        self.qkv, self.mix = nn.Linear(48, 144), nn.Linear(48, 48)
        self.wide = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 48))

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, 24)).transpose(1, 2) for each in self.qkv(self.before(x)).chunk(3, dim=-1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.characters, self.positions = nn.Embedding(64, 48), nn.Embedding(48, 48)
        self.blocks, self.last = nn.Sequential(Block(), Block()), nn.Linear(48, 64)

    def loss(self, texts):
        x = self.characters(texts) + self.positions.weight
        return nn.functional.cross_entropy(self.last(self.blocks(x))[:, :-1].flatten(0, 1), texts[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        return self.loss(batch[0])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def make_loader(n_batches):
    data = TensorDataset(torch.randint(64, (8 * n_batches, 48)))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 8, drop_last=True), batch_size=None)


trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), make_loader(150), make_loader(6))
