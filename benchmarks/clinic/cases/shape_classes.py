"""A small transformer over sets of points learns to tell kinds of shapes apart. The gradient norm of every parameter is
computed and logged at each step, though the logger writes only every fiftieth.
---
expect: [PD502, PD504, PD507]
fix:
  ? "        self.log_dict(grad_norm(self, norm_type=2))  # costs time"
  : |2-
            if (self.trainer.global_step + 1) % self.trainer.log_every_n_steps == 0:
                self.log_dict(grad_norm(self, norm_type=2))
half: score
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES, POINTS = 5, 24


class ShapeTransformer(L.LightningModule):
    def __init__(self, width=48, heads=4, depth=4):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES))

    def forward(self, points):
        return self.head(self.encoder(self.embed(points)).mean(dim=1))

    def training_step(self, batch, batch_idx):
        points, label = batch
        loss = F.cross_entropy(self(points), label, label_smoothing=0.05)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self, norm_type=2))  # costs time

    def validation_step(self, batch, batch_idx):
        points, label = batch
        logits = self(points)
        self.log("val_loss", F.cross_entropy(logits, label))
        self.log("val_accuracy", (logits.argmax(-1) == label).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def make_shapes(count, generator):
    """Points of ellipsoids, with axes by class, randomly scaled and jittered."""
    axes = torch.tensor([[1, 1, 1], [2, 1, 1], [2, 2, 0.5], [3, 0.3, 0.3], [1, 0.5, 2]])
    label = torch.randint(0, CLASSES, (count,), generator=generator)
    points = F.normalize(torch.randn(count, POINTS, 3, generator=generator), dim=-1) * axes[label][:, None]
    scale = 0.7 + 0.6 * torch.rand(count, 1, 1, generator=generator)
    return TensorDataset(points * scale + 0.1 * torch.randn(count, POINTS, 3, generator=generator), label)


if __name__ == "__main__":
    L.seed_everything(5)
    generator = torch.Generator().manual_seed(5)
    train = DataLoader(make_shapes(1440, generator), batch_size=24, shuffle=True, drop_last=True)
    val = DataLoader(make_shapes(320, generator), batch_size=64)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=CSVLogger(tempfile.mkdtemp()),
        enable_checkpointing=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(ShapeTransformer(), train, val)
