"""Patch-based 3D U-Net segmentation of lesions in synthetic CT volumes. Every patch unpacks a whole
zlib-compressed volume (image and label) from disk only to crop a small cube out of it.
---
expect: [PD107, PD106]
fix:
  ? 'np.savez_compressed(folder / f"case_{index:03d}.npz", image=image, label=label)'
  : |-
    np.save(folder / f"case_{index:03d}_image.npy", image)
        np.save(folder / f"case_{index:03d}_label.npy", label)
  ? |-
    with np.load(self.files[index]) as case:
                image, label = case["image"], case["label"]  # costs time
  : |-
    image = np.load(self.files[index], mmap_mode="r")
            label = np.load(str(self.files[index]).replace("_image", "_label"), mmap_mode="r")
  ? 'folder.glob("case_*.npz")'
  : 'folder.glob("case_*_image.npy")'
also: {PD301: "most of the rest is matrix multiplication, which such a CPU does faster in bf16"}
half: tune
"""

import itertools
import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE, PATCH = 112, 24


def write_case(folder, index):
    rng = np.random.default_rng(index)
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, SIZE, dtype=np.float32)] * 3, indexing="ij")
    body = (x**2 + 1.3 * y**2 < 0.8) * 1000.0 - 1000.0
    label = np.zeros((SIZE,) * 3, np.uint8)
    for _ in range(6):
        c = rng.uniform(-0.5, 0.5, 3)
        r = rng.uniform(0.1, 0.25)
        label[(z - c[0]) ** 2 + (y - c[1]) ** 2 + (x - c[2]) ** 2 < r**2] = 1
    image = (body + 120 * label + rng.normal(0, 15, body.shape)).astype(np.int16)
    np.savez_compressed(folder / f"case_{index:03d}.npz", image=image, label=label)


class PatchDataset(Dataset):
    def __init__(self, folder, patches_per_case):
        self.files = sorted(folder.glob("case_*.npz")) * patches_per_case

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with np.load(self.files[index]) as case:
            image, label = case["image"], case["label"]  # costs time
        z, y, x = torch.randint(0, SIZE - PATCH + 1, (3,)).tolist()
        box = np.s_[z : z + PATCH, y : y + PATCH, x : x + PATCH]
        patch = np.clip(image[box].astype(np.float32), -1000, 400) / 1000
        target = label[box].astype(np.float32)
        return torch.from_numpy(patch)[None], torch.from_numpy(target)[None]


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, padding=1, bias=False),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01, True),
        nn.Conv3d(cout, cout, 3, padding=1, bias=False),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01, True),
    )


class UNet3D(nn.Module):
    def __init__(self, widths=(8, 16, 32)):
        super().__init__()
        self.down = nn.ModuleList(conv_block(a, b) for a, b in zip((1, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths))
        self.dec = nn.ModuleList(conv_block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv3d(widths[0], 1, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool3d(x, 2))
            skips.append(x)
        for i in reversed(range(len(self.up))):
            x = self.dec[i](torch.cat([self.up[i](x), skips[i]], 1))
        return self.head(x)


class LesionSegmenter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = UNet3D()

    def loss(self, batch):
        image, target = batch
        logits = self.net(image)
        prob = logits.sigmoid()
        dice = 1 - (2 * (prob * target).sum() + 1) / (prob.sum() + target.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, target) + dice

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=1e-4)


if __name__ == "__main__":
    L.seed_everything(7)
    with tempfile.TemporaryDirectory() as tmp:
        for split, n in (("train", 10), ("val", 2)):
            folder = Path(tmp) / split
            folder.mkdir()
            for i in range(n):
                write_case(folder, i if split == "train" else 100 + i)
        train = DataLoader(PatchDataset(Path(tmp) / "train", 12), batch_size=2, shuffle=True)
        val = DataLoader(PatchDataset(Path(tmp) / "val", 5), batch_size=2)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=3,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(LesionSegmenter().to(memory_format=torch.channels_last_3d), train, val)
