"""A CNN of separable convolutions on small images, whose time goes to them.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_BIRDS = 10


def make_birds(n):
    generator = torch.Generator().manual_seed(0)
    birds = torch.randint(0, N_BIRDS, (n,), generator=generator)
    patterns = torch.randn(N_BIRDS, 3, 8, 8, generator=generator)
    images = F.interpolate(patterns, size=32)[birds]
    return images + torch.randn(n, 3, 32, 32, generator=generator), birds


def separable(n_in, n_out, stride):
    return nn.Sequential(
        nn.Conv2d(n_in, n_in, 5, stride=stride, padding=2, groups=n_in, bias=False),
        nn.Conv2d(n_in, n_out, 1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
    )


class BirdClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            separable(16, 32, 2),
            separable(32, 32, 1),
            separable(32, 64, 2),
            separable(64, 64, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, N_BIRDS),
        )

    def training_step(self, batch, batch_idx):
        images, birds = batch
        images = images.contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(self.net(images), birds)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


L.seed_everything(1)
loader = DataLoader(TensorDataset(*make_birds(3_200)), batch_size=32, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(BirdClassifier().to(memory_format=torch.channels_last), loader)
