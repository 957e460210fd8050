"""BYOL pretraining of a 1D convolutional encoder on synthetic wearable accelerometer windows.
The target branch runs inside the autograd graph, so backward goes through it too and its gradients are never used.
---
expect: PD323
fix:
  ? "t1, t2 = self.target(v1), self.target(v2)"
  : |-
    with torch.no_grad():
                t1, t2 = self.target(v1), self.target(v2)
half: tune
"""

import copy
import math

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def make_windows(n, length=128, classes=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    t = torch.arange(length) / 50.0
    cadence = (0.8 + 0.5 * y + 0.15 * torch.randn(n, generator=g))[:, None, None]
    phase = 2 * math.pi * torch.rand(n, 3, 1, generator=g)
    gain = torch.rand(n, 3, 1, generator=g) + 0.3
    x = gain * torch.sin(2 * math.pi * cadence * t + phase) + 0.4 * torch.sin(4 * math.pi * cadence * t + phase)
    gravity = F.normalize(torch.randn(n, 3, 1, generator=g), dim=1)
    return x + gravity + 0.1 * torch.randn(n, 3, length, generator=g), y


def augment(x):
    b = x.shape[0]
    q, _ = torch.linalg.qr(torch.randn(b, 3, 3))
    x = torch.einsum("bij,bjt->bit", q, x) * (0.8 + 0.4 * torch.rand(b, 1, 1))
    start = torch.randint(0, x.shape[-1] // 4, (b, 1, 1))
    keep = torch.arange(x.shape[-1])
    hole = (keep >= start * 3) & (keep < start * 3 + 32)
    return x.masked_fill(hole, 0.0) + 0.05 * torch.randn_like(x)


class ResUnit(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv1d(cin, cout, 5, stride, 2, bias=False)
        self.conv2 = nn.Conv1d(cout, cout, 5, 1, 2, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm1d(cout), nn.BatchNorm1d(cout)
        self.skip = nn.Conv1d(cin, cout, 1, stride)

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.skip(x))


def mlp(cin, hidden, cout):
    return nn.Sequential(nn.Linear(cin, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, cout))


class BYOL(L.LightningModule):
    def __init__(self, width=32, momentum=0.99):
        super().__init__()
        encoder = nn.Sequential(
            ResUnit(3, width, 2),
            ResUnit(width, 2 * width, 2),
            ResUnit(2 * width, 4 * width, 2),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.online = nn.Sequential(encoder, mlp(4 * width, 256, 64))
        self.predictor = mlp(64, 256, 64)
        self.target = copy.deepcopy(self.online)
        self.momentum = momentum

    def training_step(self, batch, batch_idx):
        x, _ = batch
        v1, v2 = augment(x), augment(x)
        p1, p2 = self.predictor(self.online(v1)), self.predictor(self.online(v2))
        t1, t2 = self.target(v1), self.target(v2)
        loss = 2 - F.cosine_similarity(p1, t2).mean() - F.cosine_similarity(p2, t1).mean()
        self.log("byol_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 1 - self.momentum)

    def on_train_epoch_end(self):
        z = F.normalize(self.online[0](self.trainer.train_dataloader.dataset.tensors[0][:512]), dim=1)
        self.log("embedding_std", z.std(0).mean())

    def configure_optimizers(self):
        params = list(self.online.parameters()) + list(self.predictor.parameters())
        return torch.optim.AdamW(params, lr=1e-3, weight_decay=1e-4, fused=True)


if __name__ == "__main__":
    L.seed_everything(21)
    data = TensorDataset(*make_windows(4096))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BYOL(), loader)
