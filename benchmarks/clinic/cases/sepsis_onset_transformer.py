"""A small transformer over hourly vital signs warns of sepsis in the next hours. A hook computes the gradient norm of
every single parameter tensor and hands all of them to self.log_dict in every step, though a row is written every 50.
---
expect: [PD502, PD504, PD507]
fix:
  ? |2-
            self.log_dict(grad_norm(self, norm_type=2))  # costs time
  : |2-
            if (self.global_step + 1) % self.trainer.log_every_n_steps == 0:
                self.log_dict(grad_norm(self, norm_type=2))
half: score
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VITALS = ["heart_rate", "resp_rate", "temperature", "map", "spo2", "lactate", "wbc", "creatinine"]
HOURS = 24


def make_stays(n):
    """Standardised random walks with drifts for the septic ones; the second half of the channels says what was
    measured in that hour."""
    septic = torch.rand(n) < 0.3
    walk = 0.3 * torch.randn(n, HOURS, len(VITALS)).cumsum(1)
    onset = torch.randint(8, HOURS, (n, 1, 1))
    progress = (torch.arange(HOURS).view(1, -1, 1) - onset + 6).clamp(min=0) / 6.0
    direction = torch.tensor([1.0, 0.8, 0.6, -1.0, -0.5, 1.2, 0.7, 0.6])
    vitals = walk + septic.view(-1, 1, 1) * progress * direction
    measured = (torch.rand(n, HOURS, len(VITALS)) < 0.6).float()
    return torch.cat([vitals * measured, measured], dim=2), septic.float()


class SepsisTransformer(L.LightningModule):
    def __init__(self, width=48, depth=4):
        super().__init__()
        self.embed = nn.Linear(2 * len(VITALS), width)
        self.position = nn.Parameter(0.02 * torch.randn(HOURS, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)
        self.loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))

    def forward(self, x):
        return self.head(self.encoder(self.embed(x) + self.position).mean(1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, septic = batch
        loss = self.loss(self(x), septic)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self, norm_type=2))  # costs time

    def validation_step(self, batch, batch_idx):
        x, septic = batch
        logits = self(x)
        self.log("val_loss", self.loss(logits, septic))
        self.log("val_accuracy", ((logits > 0) == septic.bool()).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=0.01, fused=True)


def main():
    L.seed_everything(31)
    x, septic = make_stays(3060)
    train, val = TensorDataset(x[:2560], septic[:2560]), TensorDataset(x[2560:], septic[2560:])
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=CSVLogger(tempfile.mkdtemp(), name="sepsis"),
        log_every_n_steps=50,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        SepsisTransformer(),
        DataLoader(train, batch_size=32, shuffle=True, drop_last=True),
        DataLoader(val, batch_size=250),
    )


if __name__ == "__main__":
    main()
