"""Gesture recognition in short video clips: a pretrained frame network is kept as it is, and a GRU over its
frame features is trained. The frame network is left out of the optimizer but still tracked by autograd.
---
expect: PD323
fix:
  ? 'self.backbone = backbone'
  : 'self.backbone = backbone.requires_grad_(False)'
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

FRAMES, SIZE, CROP, GESTURES = 8, 48, 40, 8


def make_clips(count):
    """A bright hand moves over a noisy background in one of eight directions."""
    gesture = torch.randint(0, GESTURES, (count,))
    angle = gesture * (2 * torch.pi / GESTURES)
    when = torch.linspace(-1, 1, FRAMES)
    centre_x = SIZE / 2 + 12 * angle.cos()[:, None] * when + 2 * torch.randn(count, 1)
    centre_y = SIZE / 2 + 12 * angle.sin()[:, None] * when + 2 * torch.randn(count, 1)
    grid = torch.arange(SIZE)
    dx = (grid - centre_x[..., None]).square()
    dy = (grid - centre_y[..., None]).square()
    hand = 150 * torch.exp(-(dy[..., :, None] + dx[..., None, :]) / 30)
    clips = hand.unsqueeze(2) + torch.randint(0, 90, (count, FRAMES, 3, SIZE, SIZE))
    return clips.to(torch.uint8), gesture


def frame_network():
    """Stands for a pretrained network; without batch statistics, so it behaves the same in train and eval mode."""
    layers = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 48)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten())


class GestureClassifier(L.LightningModule):
    def __init__(self, backbone, hidden=64):
        super().__init__()
        self.backbone = backbone
        self.temporal = nn.GRU(48 * 9, hidden, batch_first=True)
        self.classify = nn.Linear(hidden, GESTURES)

    def augment(self, clips):
        """One random crop and brightness for the batch, another in each step."""
        top, left = torch.randint(0, SIZE - CROP + 1, (2,)).tolist()
        clips = clips[..., top : top + CROP, left : left + CROP]
        return clips.float().mul_((0.8 + 0.4 * torch.rand(())) / 128).sub_(0.5)

    def forward(self, clips):
        features = self.backbone(clips.flatten(0, 1))  # costs time
        states, _ = self.temporal(features.unflatten(0, (-1, FRAMES)))
        return self.classify(states[:, -1])

    def training_step(self, batch, batch_idx):
        clips, gesture = batch
        loss = F.cross_entropy(self(self.augment(clips)), gesture)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        trained = [*self.temporal.parameters(), *self.classify.parameters()]
        return torch.optim.Adam(trained, lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(21)
    clips = TensorDataset(*make_clips(560))
    batches = BatchSampler(RandomSampler(clips), batch_size=8, drop_last=True)
    loader = DataLoader(clips, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GestureClassifier(frame_network()), loader)
