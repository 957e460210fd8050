"""A small residual network tells malignant from benign skin lesions on random crops of dermoscopy photographs kept in
memory. The point-wise color transforms work on the whole photograph, and only then a crop of a twelfth of its area is
taken.
---
expect: [PD107, PD101]
fix:
  self.transforms = color + shape: self.transforms = shape + color
half: tune
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = (0.62, 0.48, 0.42)
STD = (0.18, 0.17, 0.17)


def make_photographs(n, size=224):
    """Skin with a darker spot; the malignant ones have a ragged border and uneven pigment."""
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    theta, radius = torch.atan2(yy, xx), (xx**2 + yy**2).sqrt()
    labels = torch.randint(0, 2, (n,))
    photos = torch.empty(n, 3, size, size, dtype=torch.uint8)
    for i in range(n):
        ragged = 0.12 if labels[i] else 0.03
        border = 0.55 + ragged * torch.sin(5 * theta + 6 * torch.rand(1)) + ragged * torch.sin(9 * theta)
        spot = torch.sigmoid((border - radius) * 20)
        pigment = 0.35 + (0.15 if labels[i] else 0.04) * torch.sin(8 * xx + 6 * torch.rand(1)) * torch.cos(7 * yy)
        skin = torch.tensor([0.85, 0.66, 0.58]).view(3, 1, 1) + 0.04 * torch.randn(3, 1, 1)
        image = skin * (1 - pigment * spot) + 0.02 * torch.randn(3, size, size)
        photos[i] = (image.clamp(0, 1) * 255).to(torch.uint8)
    return photos, labels.float()


class ToFloat:
    def __call__(self, image):
        return image.float().div_(255)


class RandomGamma:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __call__(self, image):
        return image.pow_(self.low + (self.high - self.low) * torch.rand(1).item())


class RandomGain:
    def __init__(self, spread):
        self.spread = spread

    def __call__(self, image):
        return image.mul_(1 + self.spread * (2 * torch.rand(3, 1, 1) - 1)).clamp_(0, 1)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)

    def __call__(self, image):
        return image.sub_(self.mean).div_(self.std)


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        top = int(torch.randint(image.shape[1] - self.size + 1, (1,)))
        left = int(torch.randint(image.shape[2] - self.size + 1, (1,)))
        return image[:, top : top + self.size, left : left + self.size]


class RandomFlip:
    def __call__(self, image):
        return image.flip(2) if torch.rand(1).item() < 0.5 else image


class LesionPhotos(Dataset):
    def __init__(self, photos, labels):
        self.photos, self.labels = photos, labels
        color = [ToFloat(), RandomGamma(0.7, 1.4), RandomGain(0.15), Normalize(MEAN, STD)]
        shape = [RandomCrop(64), RandomFlip()]
        self.transforms = color + shape

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        image = self.photos[index]
        for transform in self.transforms:
            image = transform(image)
        return image, self.labels[index]


class LesionNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers, c_in = [], 3
        for c_out in (16, 32, 64):
            layers += [nn.Conv2d(c_in, c_out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(c_out)]
            layers += [nn.ReLU(inplace=True), nn.Conv2d(c_out, c_out, 3, padding=1), nn.ReLU(inplace=True)]
            c_in = c_out
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c_in, 1))
        self.loss = nn.BCEWithLogitsLoss()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = self.loss(self.net(images).squeeze(1), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)


def main():
    L.seed_everything(11)
    loader = DataLoader(LesionPhotos(*make_photographs(320)), batch_size=16, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=8,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LesionNet(), loader)


if __name__ == "__main__":
    main()
