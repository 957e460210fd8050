"""Distils a large keyword-spotting network into a small one on fixed log-mel clips, with the teacher's outputs computed
once when the training loader is built. The Trainer rebuilds its loaders every epoch, so the teacher runs over
the whole training set again before each epoch although clips and teacher never change.
---
expect: [PD603, PD114]
fix:
  ? "max_epochs=7, reload_dataloaders_every_n_epochs=1,"
  : "max_epochs=7,"
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MELS, FRAMES, WORDS = 40, 96, 12


def make_clips(count, seed=0):
    gen = torch.Generator().manual_seed(seed)
    words = torch.randn(WORDS, MELS, 8, generator=torch.Generator().manual_seed(7))
    templates = F.interpolate(words, size=FRAMES, mode="linear", align_corners=True)
    label = torch.randint(0, WORDS, (count,), generator=gen)
    loudness = 0.5 + torch.rand(count, 1, 1, generator=gen)
    return templates[label] * loudness + torch.randn(count, MELS, FRAMES, generator=gen), label


def conv_net(width, depth):
    layers = [nn.Conv1d(MELS, width, 5, padding=2), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, WORDS))


class KeywordData(L.LightningDataModule):
    def __init__(self, teacher, batch_size=32):
        super().__init__()
        self.teacher = teacher.eval()
        self.batch_size = batch_size

    def setup(self, stage):
        self.clips, self.labels = make_clips(960)
        self.val_set = TensorDataset(*make_clips(192, seed=1))

    @torch.inference_mode()
    def teacher_logits(self):
        return torch.cat([self.teacher(part) for part in self.clips.split(64)])

    def train_dataloader(self):
        data = TensorDataset(self.clips, self.labels, self.teacher_logits())
        return DataLoader(data, batch_size=self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=96)


class Student(L.LightningModule):
    def __init__(self, temperature=3.0, alpha=0.7):
        super().__init__()
        self.net = conv_net(width=56, depth=3)
        self.temperature, self.alpha = temperature, alpha

    def training_step(self, batch, batch_idx):
        clip, label, teacher_logits = batch
        logits = self.net(clip)
        soft = F.kl_div(
            F.log_softmax(logits / self.temperature, dim=1),
            F.log_softmax(teacher_logits / self.temperature, dim=1),
            log_target=True,
            reduction="batchmean",
        )
        loss = self.alpha * self.temperature**2 * soft + (1 - self.alpha) * F.cross_entropy(logits, label)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        clip, label = batch
        self.log("val_accuracy", (self.net(clip).argmax(1) == label).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(0)
    data = KeywordData(conv_net(width=128, depth=4))
    trainer = L.Trainer(max_epochs=7, reload_dataloaders_every_n_epochs=1, accelerator="cpu", logger=False)
    trainer.fit(Student(), data)
