"""Tags clause boundaries in token sequences with a deep, narrow transformer. The gradient norm of every parameter is
computed and logged before each optimizer step, although the logger writes every 50th step only.
---
expect: [PD502, PD504, PD507]
fix:
  ? |-
    self.log_dict(grad_norm(self, norm_type=2))  # costs time
  : |-
    if (self.global_step + 1) % self.trainer.log_every_n_steps == 0:
                self.log_dict(grad_norm(self, norm_type=2))
half: score
"""

import shutil
import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, LENGTH, N_TAGS = 3000, 32, 5


def make_corpus(n_sentences, seed):
    """Tokens from a Zipf-like law; tags depend on connectives and on the distance to the last one."""
    gen = torch.Generator().manual_seed(seed)
    tokens = (VOCAB * torch.rand(n_sentences, LENGTH, generator=gen).pow(3)).long()
    connective = tokens < 60
    position = torch.arange(LENGTH).expand_as(tokens)
    last = torch.where(connective, position, torch.zeros_like(position)).cummax(1).values
    tags = torch.where(connective, torch.zeros_like(tokens), 1 + (position - last).clamp(max=3))
    return tokens, tags


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.ff_in = nn.Linear(width, 4 * width)
        self.ff_out = nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.ff_out(F.gelu(self.ff_in(self.norm_2(x))))


class ClauseTagger(L.LightningModule):
    def __init__(self, width=48, depth=5):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, N_TAGS)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.position)))

    def training_step(self, batch, batch_idx):
        tokens, tags = batch
        loss = F.cross_entropy(self(tokens).flatten(0, 1), tags.flatten())
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self, norm_type=2))  # costs time

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(31)
    folder = tempfile.mkdtemp()
    loader = DataLoader(TensorDataset(*make_corpus(2560, seed=2)), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=CSVLogger(folder, name="clauses"),
        log_every_n_steps=50,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ClauseTagger(), loader)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
