"""A normalizing flow of affine coupling layers, trained by maximum likelihood, with a cosine schedule per step.
---
half: tune
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

WIDTH = 32


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH // 2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, WIDTH)
        )

    def forward(self, x):
        fixed, moved = x.chunk(2, dim=-1)
        scale, shift = self.net(fixed).chunk(2, dim=-1)
        scale = scale.tanh()
        return torch.cat([moved * scale.exp() + shift, fixed], dim=-1), scale.sum(-1)


class Flow(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling() for _ in range(6))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        volume = x.new_zeros(len(x))
        for layer in self.layers:
            x, change = layer(x)
            volume = volume + change
        loss = (0.5 * x.square().sum(-1) - volume).mean()
        self.log("train/nll", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=160)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(1)
    data = TensorDataset(torch.randn(160 * 256, WIDTH) @ torch.randn(WIDTH, WIDTH) * 0.3)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        gradient_clip_val=5.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 256, drop_last=True), batch_size=None)
    trainer.fit(Flow(), loader)
