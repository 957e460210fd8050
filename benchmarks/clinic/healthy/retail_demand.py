"""Trains a recurrent encoder and decoder that forecasts the demand for articles over the next four weeks, with teacher
forcing and a learning rate that follows one cycle.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

PAST, FUTURE, CALENDAR = 56, 28, 4


def make_sales(articles=600, days=500, seed=41):
    """Weekly pattern, yearly wave, promotions; scaled by the mean of the article."""
    generator = torch.Generator().manual_seed(seed)
    day = torch.arange(days, dtype=torch.float32)
    promotion = (torch.rand(articles, days, generator=generator) < 0.05).float()
    week = torch.rand(articles, 7, generator=generator)[:, torch.arange(days) % 7]
    year = 0.4 * torch.sin(2 * torch.pi * (day / 365 + torch.rand(articles, 1, generator=generator)))
    sales = (1 + week + year + 1.5 * promotion + 0.3 * torch.randn(articles, days, generator=generator)).clamp(min=0)
    calendar = torch.stack([(2 * torch.pi * day / period + shift).sin() for period in (7, 365) for shift in (0, 1.57)])
    known = torch.cat([calendar.T.expand(articles, days, CALENDAR), promotion.unsqueeze(2)], dim=2)
    return sales / sales.mean(dim=1, keepdim=True), known


class Windows(IterableDataset):
    """Batches of windows of random articles that end at random days."""

    def __init__(self, sales, known, batches, batch_size=64, seed=0):
        self.sales, self.known = sales, known
        self.batches, self.batch_size = batches, batch_size
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.batches

    def __iter__(self):
        articles, days = self.sales.shape
        steps = torch.arange(PAST + FUTURE)
        for _ in range(self.batches):
            article = torch.randint(articles, (self.batch_size, 1), generator=self.generator)
            day = torch.randint(days - PAST - FUTURE, (self.batch_size, 1), generator=self.generator) + steps
            yield self.sales[article, day], self.known[article, day]


class DemandForecaster(lightning.LightningModule):
    def __init__(self, total_steps, width=96):
        super().__init__()
        self.total_steps = total_steps
        self.encoder = nn.GRU(1 + CALENDAR + 1, width, batch_first=True)
        self.decoder = nn.GRU(1 + CALENDAR + 1, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, sales, known):
        """Mean and scale for each day of the future; the decoder sees the true demand of the day before."""
        before = torch.cat([sales[:, :-1].unsqueeze(2), known[:, 1:]], dim=2)
        _, state = self.encoder(before[:, : PAST - 1])
        hidden, _ = self.decoder(before[:, PAST - 1 :], state)
        mean, scale = self.head(hidden).unbind(dim=2)
        return mean, F.softplus(scale) + 1e-3

    def training_step(self, batch, batch_idx):
        sales, known = batch
        mean, scale = self(sales, known)
        return F.gaussian_nll_loss(mean, sales[:, PAST:], scale**2)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main(epochs=2, batches=90):
    lightning.seed_everything(41)
    loader = DataLoader(Windows(*make_sales(), batches=batches), batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(DemandForecaster(total_steps=epochs * batches), loader)


if __name__ == "__main__":
    main()
