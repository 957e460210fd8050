"""A news ranker scores eight articles for each reader, and encodes the reader again for each of them.
---
expect: PD334
half: tune
fix:
  ? "readers = self.reader(history.repeat_interleave(n, dim=0))  # costs time"
  : "readers = self.reader(history).repeat_interleave(n, dim=0)"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLICKS, WIDTH, CANDIDATES = 16, 48, 8


def make_visits(n=3200):
    generator = torch.Generator().manual_seed(0)
    history = torch.randn(n, CLICKS * WIDTH, generator=generator)
    articles = torch.randn(n, CANDIDATES, WIDTH, generator=generator)
    clicked = torch.randint(CANDIDATES, (n,), generator=generator)
    return TensorDataset(history, articles, clicked)


class NewsRanker(LightningModule):
    def __init__(self):
        super().__init__()
        self.reader = nn.Sequential(nn.Linear(CLICKS * WIDTH, 768), nn.GELU(), nn.Linear(768, 128))
        self.article = nn.Sequential(nn.Linear(WIDTH, 384), nn.GELU(), nn.Linear(384, 128))

    def training_step(self, batch, batch_idx):
        history, articles, clicked = batch
        n = articles.shape[1]
        readers = self.reader(history.repeat_interleave(n, dim=0))  # costs time
        scores = (readers * self.article(articles.flatten(0, 1))).sum(-1)
        loss = F.cross_entropy(scores.view(-1, n), clicked)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(0)
    loader = DataLoader(make_visits(), batch_size=64, shuffle=True)
    trainer = Trainer(accelerator="cpu", max_epochs=8, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False)  # fmt: skip
    trainer.fit(NewsRanker(), loader)
