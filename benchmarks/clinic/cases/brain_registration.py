"""Trains a small 3D network that registers pairs of brain volumes by a dense displacement field.
The local cross-correlation sums its window with a dense cubic kernel instead of one axis at a time.
---
expect: PD335
half: tune
fix:
  ? "return F.conv3d(maps, self.window, padding=self.size // 2)  # costs time"
  : "return torch.einsum('bcdhw,di,hj,wk->bcijk', maps, self.window, self.window, self.window)"
  ? "window = torch.ones(1, 1, size, size, size)"
  : "window = torch.ones(extent, extent).tril(size // 2).triu(-(size // 2))"
"""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

EXTENT = 24


class BrainPairs(Dataset):
    """Pairs of smooth random volumes; the second is a shifted and rescaled copy of the first."""

    def __init__(self, num_pairs: int) -> None:
        coarse = torch.randn(num_pairs, 1, 6, 6, 6)
        fixed = F.interpolate(coarse, size=(EXTENT,) * 3, mode="trilinear", align_corners=True)
        moving = torch.roll(fixed, shifts=(1, -1, 2), dims=(2, 3, 4)) * 1.2 + 0.1
        self.pairs = torch.cat([moving, fixed + 0.05 * torch.randn_like(fixed)], dim=1)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: list[int]) -> Tensor:
        return self.pairs[index]


class LocalCrossCorrelation(nn.Module):
    """Negative squared cross-correlation in a sliding cubic window."""

    def __init__(self, size: int, extent: int) -> None:
        super().__init__()
        self.size = size
        window = torch.ones(1, 1, size, size, size)
        self.register_buffer("window", window, persistent=False)

    def window_sum(self, maps: Tensor) -> Tensor:
        """Sum of each map over the window around every voxel; zero outside of the volume."""
        return F.conv3d(maps, self.window, padding=self.size // 2)  # costs time

    def forward(self, warped: Tensor, fixed: Tensor) -> Tensor:
        maps = torch.cat([warped, fixed, warped.square(), fixed.square(), warped * fixed])
        sum_w, sum_f, sum_ww, sum_ff, sum_wf = self.window_sum(maps).chunk(5)
        count = self.size**3
        cross = sum_wf - sum_w * sum_f / count
        var_w = (sum_ww - sum_w.square() / count).clamp(min=1e-3)
        var_f = (sum_ff - sum_f.square() / count).clamp(min=1e-3)
        return -(cross.square() / (var_w * var_f)).mean()


class DisplacementNet(nn.Module):
    """Encoder-decoder of two scales that predicts a displacement per voxel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv3d(2, width, 3, padding=1)
        self.down = nn.Conv3d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv3d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.flow = nn.Conv3d(width, 3, 3, padding=1)
        nn.init.normal_(self.flow.weight, std=1e-4)

    def forward(self, pair: Tensor) -> Tensor:
        skip = F.leaky_relu(self.stem(pair), 0.2)
        deep = F.leaky_relu(self.down(skip), 0.2)
        deep = F.leaky_relu(self.middle(deep), 0.2)
        return self.flow(F.leaky_relu(self.up(deep), 0.2) + skip)


class Registration(L.LightningModule):
    """Unsupervised deformable registration with a similarity and a smoothness term."""

    def __init__(self, width: int = 12, window: int = 7, smoothness: float = 0.5) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = DisplacementNet(width)
        self.similarity = LocalCrossCorrelation(window, EXTENT)
        identity = F.affine_grid(torch.eye(3, 4)[None], [1, 1, EXTENT, EXTENT, EXTENT], align_corners=True)
        self.register_buffer("identity", identity, persistent=False)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        moving, fixed = batch[:, :1], batch[:, 1:]
        flow = self.network(batch)
        grid = self.identity + flow.permute(0, 2, 3, 4, 1)
        warped = F.grid_sample(moving, grid, align_corners=True)
        similarity = self.similarity(warped, fixed)
        roughness = sum(flow.diff(dim=axis).square().mean() for axis in (2, 3, 4))
        loss = similarity + self.hparams.smoothness * roughness
        self.log_dict({"train/similarity": similarity, "train/roughness": roughness})
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main() -> None:
    L.seed_everything(5)
    pairs = BrainPairs(num_pairs=80)
    sampler = BatchSampler(RandomSampler(pairs), batch_size=1, drop_last=True)
    loader = DataLoader(pairs, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(Registration(), loader)


if __name__ == "__main__":
    main()
