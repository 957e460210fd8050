"""A variational autoencoder for synthetic household survey records with numeric and categorical columns.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

NUMERIC, CATEGORIES = 24, (3, 5, 8, 12)


def make_survey(count):
    """Numeric columns and category codes that depend on a few hidden traits of a household."""
    traits = torch.randn(count, 5)
    mixing = torch.randn(5, NUMERIC, generator=torch.Generator().manual_seed(0))
    numeric = torch.tanh(traits @ mixing) + 0.1 * torch.randn(count, NUMERIC)
    codes = []
    for column, size in enumerate(CATEGORIES):
        level = torch.sigmoid(1.5 * traits[:, column] + 0.3 * torch.randn(count))
        codes.append((level * size).long().clamp(max=size - 1))
    return TensorDataset(numeric, torch.stack(codes, dim=1))


class SurveyVAE(L.LightningModule):
    def __init__(self, hidden=320, latent=8, beta=0.5):
        super().__init__()
        self.beta = beta
        self.embeddings = nn.ModuleList(nn.Embedding(size, 4) for size in CATEGORIES)
        self.encoder = nn.Sequential(
            nn.Linear(NUMERIC + 4 * len(CATEGORIES), hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, NUMERIC + sum(CATEGORIES)),
        )

    def forward(self, numeric, codes):
        embedded = [embed(column) for embed, column in zip(self.embeddings, codes.unbind(1), strict=True)]
        mean, log_var = self.encoder(torch.cat([numeric, *embedded], dim=1)).chunk(2, dim=1)
        latent = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)
        return self.decoder(latent), mean, log_var

    def loss(self, numeric, codes):
        decoded, mean, log_var = self(numeric, codes)
        numeric_hat, *logits = decoded.split([NUMERIC, *CATEGORIES], dim=1)
        reconstruction = F.mse_loss(numeric_hat, numeric, reduction="sum")
        for column, scores in zip(codes.unbind(1), logits, strict=True):
            reconstruction = reconstruction + F.cross_entropy(scores, column, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_var - mean.square() - log_var.exp())
        return (reconstruction + self.beta * divergence) / len(numeric)

    def training_step(self, batch, batch_idx):
        loss = self.loss(*batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(*batch), batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def make_loader(records, sampler, batch_size):
    """Whole batches are sliced out of the tensors in memory."""
    batches = BatchSampler(sampler(records), batch_size, drop_last=False)
    return DataLoader(records, sampler=batches, batch_size=None)


if __name__ == "__main__":
    L.seed_everything(23)
    train = make_loader(make_survey(100_000), RandomSampler, 1000)
    valid = make_loader(make_survey(10_000), SequentialSampler, 2000)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SurveyVAE(), train, valid)
