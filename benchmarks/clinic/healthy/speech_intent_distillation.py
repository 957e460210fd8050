"""Distills a large classifier of spoken intents into a smaller one, on log-mel frames that are masked at random.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

FRAMES, MELS, INTENTS = 40, 64, 20


def make_features(n):
    gen = torch.Generator().manual_seed(13)
    labels = torch.randint(INTENTS, (n,), generator=gen)
    prototypes = torch.randn(INTENTS, FRAMES, MELS, generator=gen)
    features = 0.5 * prototypes[labels] + torch.randn(n, FRAMES, MELS, generator=gen)
    return features, labels


class FrameNet(nn.Module):
    """Context windows of frames, a network on each of them, mean over time."""

    def __init__(self, width, context=8):
        super().__init__()
        self.context = context
        self.net = nn.Sequential(
            nn.Linear(context * MELS, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, INTENTS)

    def forward(self, x):
        windows = x.reshape(len(x), FRAMES // self.context, self.context * MELS)
        return self.head(self.net(windows).mean(1))


class Distillation(L.LightningModule):
    def __init__(self, temperature=3.0, alpha=0.7):
        super().__init__()
        self.save_hyperparameters()
        self.teacher = FrameNet(1024).eval().requires_grad_(False)
        self.student = FrameNet(768)
        self.val_acc = MulticlassAccuracy(INTENTS)

    def forward(self, x):
        return self.student(x)

    def on_train_epoch_start(self):
        self.teacher.eval()

    def mask(self, x):
        start = torch.randint(FRAMES - 8, (1,)).item()
        band = torch.randint(MELS - 10, (1,)).item()
        x = x.clone()
        x[:, start : start + 8] = 0
        x[:, :, band : band + 10] = 0
        return x

    def training_step(self, batch, batch_idx):
        x, labels = batch
        x = self.mask(x)
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.hparams.temperature, dim=1)
        logits = self.student(x)
        kd = F.kl_div(F.log_softmax(logits / self.hparams.temperature, dim=1), soft, reduction="batchmean")
        ce = F.cross_entropy(logits, labels)
        loss = self.hparams.alpha * self.hparams.temperature**2 * kd + (1 - self.hparams.alpha) * ce
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, labels = batch
        self.val_acc.update(self.student(x), labels)
        self.log("val_acc", self.val_acc, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.student.parameters(), lr=5e-4, fused=True)


if __name__ == "__main__":
    L.seed_everything(13)
    features, labels = make_features(3520)
    train = DataLoader(TensorDataset(features[:3200], labels[:3200]), batch_size=64, shuffle=True)
    val = DataLoader(TensorDataset(features[3200:], labels[3200:]), batch_size=160)
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Distillation(), train, val)
