"""An image classifier with plain convolutions in channels-last layout and bfloat16 autocast, trained with SGD and a
one-cycle learning rate.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def conv(inp, out, stride=1):
    return nn.Sequential(nn.Conv2d(inp, out, 3, stride=stride, padding=1), nn.ReLU(inplace=True))


class SmallCNN(LightningModule):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            conv(3, 32, stride=2), conv(32, 64), conv(64, 64, stride=2), conv(64, 128), conv(128, 128, stride=2)
        )
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.features(x).mean(dim=(2, 3)))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=self.trainer.estimated_stepping_batches
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


if __name__ == "__main__":
    seed_everything(9)
    labels = torch.randint(0, 10, (3200,))
    prototypes = torch.randn(10, 3, 32, 32)
    images = prototypes[labels] + torch.randn(3200, 3, 32, 32)
    data = TensorDataset(images.contiguous(memory_format=torch.channels_last), labels)
    batches = BatchSampler(RandomSampler(data), batch_size=40, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    model = SmallCNN().to(memory_format=torch.channels_last)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, loader)
