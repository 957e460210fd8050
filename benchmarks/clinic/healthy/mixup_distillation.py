"""A small student network is distilled from a frozen teacher on mixtures of images (mixup), which are new in each step.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

N_CLASSES = 20
PIXELS = 3 * 16 * 16


def make_teacher():
    """Act as a network that was trained before."""
    torch.manual_seed(100)
    teacher = nn.Sequential(nn.Linear(PIXELS, 192), nn.ReLU(), nn.Linear(192, N_CLASSES))
    for layer in (teacher[0], teacher[2]):
        layer.weight.data.mul_(2.0)
    return teacher.eval().requires_grad_(False)


def make_images(n, teacher, seed):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 3, 8, 8, generator=g)
    images = F.interpolate(coarse, scale_factor=2).flatten(1) + 0.2 * torch.randn(n, PIXELS, generator=g)
    with torch.no_grad():
        labels = teacher(images).argmax(1)
    return TensorDataset(images, labels)


def batches(dataset, size, shuffle):
    """Whole batches are indexed at once, as the tensors lie in memory."""
    sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(sampler, size, drop_last=shuffle), batch_size=None)


class MixupDistillation(L.LightningModule):
    def __init__(self, teacher, temperature=3.0, weight=0.8):
        super().__init__()
        self.teacher, self.temperature, self.weight = teacher, temperature, weight
        self.student = nn.Sequential(
            nn.Linear(PIXELS, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, N_CLASSES)
        )
        self.mix = torch.distributions.Beta(0.4, 0.4)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        lam = self.mix.sample()
        other = torch.randperm(len(images))
        mixed = torch.lerp(images[other], images, lam)
        with torch.no_grad():
            soft = F.softmax(self.teacher(mixed) / self.temperature, dim=1)
        logits = self.student(mixed)
        hard = lam * F.cross_entropy(logits, labels) + (1 - lam) * F.cross_entropy(logits, labels[other])
        kl = F.kl_div(F.log_softmax(logits / self.temperature, dim=1), soft, reduction="batchmean")
        loss = self.weight * self.temperature**2 * kl + (1 - self.weight) * hard
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val_accuracy", (self.student(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(8)
    teacher = make_teacher()
    train = batches(make_images(16_384, teacher, 0), 256, shuffle=True)
    val = batches(make_images(1024, teacher, 1), 512, shuffle=False)
    trainer = L.Trainer(accelerator="cpu", max_epochs=6, logger=False, enable_checkpointing=False)
    trainer.fit(MixupDistillation(teacher), train, val)
