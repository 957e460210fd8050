"""A convolutional network names plants by scanned leaves, trained on augmented grey images held as bytes in memory.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 32
PLANTS = 8


class Leaves(Dataset):
    """Silhouettes in polar form: each plant has its own lobes and length; leaves differ in size and angle."""

    def __init__(self, count):
        self.plant = torch.randint(0, PLANTS, (count,))
        lobes = torch.tensor([1, 2, 3, 3, 5, 5, 7, 2])[self.plant].view(-1, 1, 1)
        depth = torch.tensor([0.1, 0.2, 0.2, 0.4, 0.2, 0.4, 0.3, 0.4])[self.plant].view(-1, 1, 1)
        length = torch.tensor([1.0, 1.6, 1.0, 1.2, 1.0, 1.3, 1.0, 1.2])[self.plant].view(-1, 1, 1)
        axis = torch.linspace(-1.2, 1.2, SIDE)
        row, column = torch.meshgrid(axis, axis, indexing="ij")
        tilt = 0.6 * torch.randn(count, 1, 1)
        across = row * torch.cos(tilt) - column * torch.sin(tilt)
        along = (row * torch.sin(tilt) + column * torch.cos(tilt)) / length
        size = 0.55 + 0.15 * torch.rand(count, 1, 1)
        edge = size * (1 + depth * torch.cos(lobes * torch.atan2(across, along)))
        leaf = torch.sigmoid(12 * (edge - torch.hypot(across, along)))
        noisy = leaf + 0.1 * torch.randn_like(leaf)
        self.scans = noisy.mul(200).clamp(0, 255).to(torch.uint8).unsqueeze(1)

    def __len__(self):
        return len(self.plant)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.scans[rows], self.plant[rows]


def convolution(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class LeafModel(L.LightningModule):
    def __init__(self, width=16, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.network = nn.Sequential(
            convolution(1, width, stride=2),
            convolution(width, 2 * width, stride=2),
            convolution(2 * width, 4 * width),
            convolution(4 * width, 4 * width, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(4 * width, PLANTS),
        ).to(memory_format=torch.channels_last)

    def forward(self, scans):
        images = scans.float().mul_(1 / 128).sub_(0.5)
        return self.network(images.to(memory_format=torch.channels_last))

    def training_step(self, batch, batch_idx):
        scans, plant = batch
        # flips of bytes are cheap; one draw for the batch suffices over many batches
        axes = [axis for axis, draw in ((2, torch.rand(())), (3, torch.rand(()))) if draw < 0.5]
        scans = scans.flip(axes) if axes else scans
        return F.cross_entropy(self(scans), plant, label_smoothing=0.05)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01, fused=True)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=int(steps))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def identity(batch):
    return batch


def main():
    L.seed_everything(31)
    leaves = Leaves(6400)
    loader = DataLoader(leaves, batch_size=64, shuffle=True, drop_last=True, collate_fn=identity)
    model = LeafModel()
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        right = (model(leaves.scans[:1000]).argmax(1) == leaves.plant[:1000]).float().mean()
    print(f"named rightly: {right:.3f}")


if __name__ == "__main__":
    main()
