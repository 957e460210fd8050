"""Recommends the next podcast from a listener's history with a small causal transformer and sampled negatives, and
ranks the held-out podcast among the full catalogue after every epoch. The ranking sorts all scores twice to find the
position of one item.
---
expect: PD601
fix:
  ? |-
    order = scores.argsort(dim=1, descending=True)  # costs time
            rank = order.argsort(dim=1).gather(1, target[:, None]).squeeze(1)  # costs time
  : |-
    rank = (scores > scores.gather(1, target[:, None])).sum(1)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_ITEMS, N_USERS, HISTORY, N_NEGATIVES = 6000, 3072, 24, 256


def listening_histories():
    """Each listener favors a few genres; popularity within a genre follows a power law."""
    gen = torch.Generator().manual_seed(8)
    n_genres, per_genre = 60, N_ITEMS // 60
    taste = torch.randint(0, n_genres, (N_USERS, 3), generator=gen)
    pick = torch.randint(0, 3, (N_USERS, HISTORY + 2), generator=gen)
    genre = taste.gather(1, pick)
    within = (torch.rand(N_USERS, HISTORY + 2, generator=gen).pow(2.5) * per_genre).long()
    return genre * per_genre + within


class NextEpisodeModel(L.LightningModule):
    def __init__(self, width=48, depth=1):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS, width)
        nn.init.normal_(self.items.weight, std=0.05)
        self.position = nn.Parameter(0.02 * torch.randn(HISTORY, width))
        layer = nn.TransformerEncoderLayer(width, 2, dim_feedforward=96, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        mask = nn.Transformer.generate_square_subsequent_mask(HISTORY)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, history):
        return self.encoder(self.items(history) + self.position, mask=self.mask, is_causal=True)

    def training_step(self, batch, batch_idx):
        (sequence,) = batch
        hidden = self(sequence[:, :-1]).flatten(0, 1)
        target = sequence[:, 1:].flatten()
        negatives = torch.randint(0, N_ITEMS, (N_NEGATIVES,))
        positive = (hidden * self.items(target)).sum(-1, keepdim=True)
        logits = torch.cat([positive, hidden @ self.items(negatives).T], 1)
        loss = F.cross_entropy(logits, torch.zeros_like(target))
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        history, target = batch
        scores = self(history)[:, -1] @ self.items.weight.T
        scores.scatter_(1, history, float("-inf"))
        order = scores.argsort(dim=1, descending=True)  # costs time
        rank = order.argsort(dim=1).gather(1, target[:, None]).squeeze(1)  # costs time
        hit = (rank < 20).float()
        ndcg = hit / torch.log2(rank.float() + 2.0)
        self.log_dict({"val_hit@20": hit.mean(), "val_ndcg@20": ndcg.mean()}, batch_size=len(target))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def main():
    L.seed_everything(5)
    histories = listening_histories()
    train = TensorDataset(histories[:, :-1].contiguous())
    holdout = histories[:1200]
    val = TensorDataset(holdout[:, 1:-1].contiguous(), holdout[:, -1].contiguous())
    train_loader = DataLoader(train, batch_size=48, shuffle=True)
    val_loader = DataLoader(val, batch_size=400)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(NextEpisodeModel(), train_loader, val_loader)


if __name__ == "__main__":
    main()
