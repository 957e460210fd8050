"""Pretrains a small transformer encoder on tokenized server logs by masked-token prediction.
The vocabulary projection and its softmax run over every position although only the masked 15 % enter the loss.
---
expect: PD325
half: tune
fix:
  ? "logits = self.head(hidden)  # costs time"
  : "logits = self.head(hidden[labels != IGNORE])"
  ? "loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)"
  : "loss = F.cross_entropy(logits, labels[labels != IGNORE])"
"""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

VOCAB_SIZE = 4096
MASK_TOKEN = 0
IGNORE = -100
SEQUENCE_LENGTH = 64


class LogLines(Dataset):
    """Tokenized log lines; every host writes from its own narrow range of templates."""

    def __init__(self, num_lines: int, num_hosts: int = 64) -> None:
        host = torch.randint(num_hosts, (num_lines, 1))
        start = 1 + host * ((VOCAB_SIZE - 64) // num_hosts)
        drift = torch.randint(0, 48, (num_lines, SEQUENCE_LENGTH))
        self.tokens = (start + drift).clamp_(max=VOCAB_SIZE - 1)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: list[int]) -> Tensor:
        return self.tokens[index]


class LogEncoder(nn.Module):
    """Pre-norm transformer encoder with learned positions."""

    def __init__(self, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB_SIZE, dim)
        self.position_embedding = nn.Parameter(torch.randn(SEQUENCE_LENGTH, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.token_embedding(tokens) + self.position_embedding)


class MaskedLogModel(L.LightningModule):
    """Masked-token pretraining with the 80/10/10 corruption of BERT."""

    def __init__(self, dim: int = 128, depth: int = 2, heads: int = 4, mask_rate: float = 0.15) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.encoder = LogEncoder(dim, depth, heads)
        self.head = nn.Linear(dim, VOCAB_SIZE)

    def corrupt(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the corrupted tokens and the labels, which are IGNORE at untouched positions."""
        draw = torch.rand(tokens.shape, device=tokens.device)
        rate = self.hparams.mask_rate
        labels = torch.where(draw < rate, tokens, IGNORE)
        corrupted = torch.where(draw < 0.8 * rate, MASK_TOKEN, tokens)
        swapped = (draw >= 0.8 * rate) & (draw < 0.9 * rate)
        return torch.where(swapped, torch.randint_like(tokens, VOCAB_SIZE), corrupted), labels

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        corrupted, labels = self.corrupt(batch)
        hidden = self.encoder(corrupted)
        logits = self.head(hidden)  # costs time
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=0.01, fused=True)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    L.seed_everything(17)
    lines = LogLines(num_lines=12 * 80)
    sampler = BatchSampler(RandomSampler(lines), batch_size=12, drop_last=True)
    loader = DataLoader(lines, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(MaskedLogModel(), loader)


if __name__ == "__main__":
    main()
