"""A small residual network sorts photographs of glazed ceramics by the fault of the glaze.
oneDNN was switched off once, against an error on another machine ("could not create a primitive"), and stayed off:
the convolutions run through the slow fallback of PyTorch.
---
expect: PD338
fix:
  ? |2-
        torch.backends.mkldnn.enabled = False
  : |2-
        torch.backends.mkldnn.enabled = True
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 32
FAULTS = ("none", "crazing", "pinholes", "crawling")


class GlazePhotographs(Dataset):
    """Patches of glaze in color: a shade with a gradient of light, and cracks, holes or bare spots upon it."""

    def __init__(self, count):
        self.fault = torch.randint(0, len(FAULTS), (count,))
        row = torch.linspace(-1, 1, SIDE).view(1, SIDE, 1)
        column = torch.linspace(-1, 1, SIDE).view(1, 1, SIDE)
        angle, phase, light = (torch.rand(count, 1, 1) * 6.28 for _ in range(3))
        across = row * torch.sin(angle) + column * torch.cos(angle)
        along = row * torch.cos(angle) - column * torch.sin(angle)
        cracks = (torch.sin(9 * across + 1.5 * torch.sin(5 * along) + phase).abs() < 0.08).float()
        holes = F.max_pool2d((torch.rand(count, 1, SIDE, SIDE) < 0.01).float(), 2, 1)[:, 0]
        holes = F.pad(holes, (0, 1, 0, 1))
        bare = ((across - 0.4).square() + (along + 0.2).square() < 0.12).float()
        marks = torch.stack((torch.zeros_like(cracks), cracks, holes, bare), 1)
        mark = marks[torch.arange(count), self.fault].unsqueeze(1)
        shade = torch.rand(count, 3, 1, 1) + 0.2 * (row * torch.sin(light) + column * torch.cos(light)).unsqueeze(1)
        self.photos = shade - 0.4 * mark + 0.15 * torch.randn(count, 3, SIDE, SIDE)

    def __len__(self):
        return len(self.fault)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.photos[rows], self.fault[rows]


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.skip(x))


class GlazeModel(L.LightningModule):
    def __init__(self, width=24, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.network = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            Block(width, 2 * width),
            Block(2 * width, 3 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(3 * width, len(FAULTS)),
        ).to(memory_format=torch.channels_last)

    def forward(self, photos):
        return self.network(photos.to(memory_format=torch.channels_last))

    def training_step(self, batch, batch_idx):
        photos, fault = batch
        return F.cross_entropy(self(photos), fault)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def identity(batch):
    return batch


def main():
    torch.backends.mkldnn.enabled = False
    L.seed_everything(23)
    photographs = GlazePhotographs(3200)
    loader = DataLoader(photographs, batch_size=16, shuffle=True, drop_last=True, collate_fn=identity)
    model = GlazeModel()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        right = (model(photographs.photos[:400]).argmax(1) == photographs.fault[:400]).float().mean()
    print(f"sorted rightly: {right:.3f}")


if __name__ == "__main__":
    main()
