"""Routing of customer-support tickets to teams with a small transformer encoder over tokens. A callback runs a full
garbage collection after every few batches.
---
expect: [PD508, PD504]
half: score
fix:
  ? "COLLECT_EVERY = 4"
  : "COLLECT_EVERY = 1000"
"""

import gc
import resource

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

VOCABULARY, TEAMS, MAX_TOKENS, TICKETS, BATCH = 4000, 12, 48, 6400, 32
PAD = 0
COLLECT_EVERY = 4


def make_tickets() -> TensorDataset:
    """Each team has words of its own; tickets mix them with common words."""
    generator = torch.Generator().manual_seed(61)
    team = torch.randint(0, TEAMS, (TICKETS,), generator=generator)
    common = torch.randint(1, VOCABULARY, (TICKETS, MAX_TOKENS), generator=generator)
    own = 1 + team.unsqueeze(1) * 50 + torch.randint(0, 50, (TICKETS, MAX_TOKENS), generator=generator)
    tokens = torch.where(torch.rand(TICKETS, MAX_TOKENS, generator=generator) < 0.15, own, common)
    lengths = torch.randint(MAX_TOKENS // 2, MAX_TOKENS + 1, (TICKETS, 1), generator=generator)
    return TensorDataset(tokens.masked_fill(torch.arange(MAX_TOKENS) >= lengths, PAD), team)


class MemoryWatch(Callback):
    """Keeps the memory of long runs in check and remembers its peak."""

    def __init__(self) -> None:
        self.peak_mib = 0.0

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        if trainer.global_step % COLLECT_EVERY == 0:
            gc.collect()  # costs time
        self.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class TicketRouter(LightningModule):
    """Transformer encoder with mean pooling over the real tokens."""

    def __init__(self, width: int = 80, depth: int = 2, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.positions = nn.Parameter(torch.randn(MAX_TOKENS, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, TEAMS)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == PAD
        hidden = self.encoder(self.words(tokens) + self.positions, src_key_padding_mask=padding)
        real = (~padding).unsqueeze(-1)
        return self.head((hidden * real).sum(1) / real.sum(1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        tokens, team = batch
        return F.cross_entropy(self(tokens), team)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    seed_everything(61)
    dataset = make_tickets()
    loader = DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=True), batch_size=None)
    watch = MemoryWatch()
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        callbacks=[watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TicketRouter(), loader)
    print(f"peak memory {watch.peak_mib:.0f} MiB")


if __name__ == "__main__":
    main()
