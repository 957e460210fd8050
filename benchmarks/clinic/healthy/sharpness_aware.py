"""Sharpness-aware minimization by manual optimization: two forward and backward passes per step, foreach operations.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

RADIUS = 0.05


class SharpnessAware(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(128, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        weights = list(self.net.parameters())
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self.net(x), y))
        with torch.no_grad():
            gradients = [weight.grad for weight in weights]
            norm = torch.nn.utils.get_total_norm(gradients)
            moves = torch._foreach_mul(gradients, RADIUS / (norm + 1e-12))
            torch._foreach_add_(weights, moves)
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self.net(x), y))
        with torch.no_grad():
            torch._foreach_sub_(weights, moves)
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    data = TensorDataset(torch.randn(400 * 128, 128), torch.randint(0, 10, (400 * 128,)))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        SharpnessAware(),
        DataLoader(data, sampler=BatchSampler(RandomSampler(data), 128, drop_last=True), batch_size=None),
    )
