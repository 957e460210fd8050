"""An adversarial autoencoder for tracks of ships, with two optimizers stepped by hand.
---
half: score
"""

from itertools import pairwise

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

REPORTS, CHANNELS, CODE = 64, 4, 16


def tracks(count, seed):
    """Position and velocity of ships that turn slowly and change their speed, 64 reports each."""
    g = torch.Generator().manual_seed(seed)
    turn = 0.05 * torch.randn(count, 1, generator=g) + 0.02 * torch.randn(count, REPORTS, generator=g)
    course = torch.rand(count, 1, generator=g) * 6.2832 + turn.cumsum(1)
    speed = 0.5 + torch.rand(count, 1, generator=g) + 0.1 * torch.randn(count, REPORTS, generator=g)
    velocity = speed[:, :, None] * torch.stack([course.cos(), course.sin()], 2)
    return TensorDataset(torch.cat([velocity.cumsum(1) / 30, velocity], 2).flatten(1))


def perceptron(*widths):
    layers = [nn.Linear(widths[0], widths[1])]
    for before, after in pairwise(widths[1:]):
        layers += [nn.ReLU(), nn.Linear(before, after)]
    return nn.Sequential(*layers)


class Tracks(lightning.LightningModule):
    def __init__(self, width=768):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = perceptron(REPORTS * CHANNELS, width, width, CODE)
        self.decoder = perceptron(CODE, width, width, REPORTS * CHANNELS)
        self.critic = perceptron(CODE, 256, 256, 1)

    def training_step(self, batch, batch_idx):
        (track,) = batch
        rebuild, judge = self.optimizers()

        self.toggle_optimizer(rebuild)
        code = self.encoder(track)
        fooled = self.critic(code)
        loss = F.mse_loss(self.decoder(code), track)
        loss = loss + 0.02 * F.binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))
        rebuild.zero_grad()
        self.manual_backward(loss)
        rebuild.step()
        self.untoggle_optimizer(rebuild)

        self.toggle_optimizer(judge)
        verdict = self.critic(torch.cat([torch.randn_like(code), code.detach()]))
        truth = torch.cat([torch.ones(len(code), 1), torch.zeros(len(code), 1)])
        judge.zero_grad()
        self.manual_backward(F.binary_cross_entropy_with_logits(verdict, truth))
        judge.step()
        self.untoggle_optimizer(judge)

    def validation_step(self, batch, batch_idx):
        (track,) = batch
        self.log("val_error", F.mse_loss(self.decoder(self.encoder(track)), track), batch_size=len(track))

    def configure_optimizers(self):
        parts = [*self.encoder.parameters(), *self.decoder.parameters()]
        rebuild = torch.optim.Adam(parts, lr=1e-3, fused=True)
        judge = torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
        return rebuild, judge


def loader(dataset, batch_size, shuffle=False):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    lightning.seed_everything(19, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tracks(), loader(tracks(20480, seed=1), 256, shuffle=True), loader(tracks(1024, seed=2), 256))
