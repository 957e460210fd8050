"""Classifies isolated signs from hand and body keypoint tracks of varying length with a transformer encoder. Healthy:
clips of similar length share a batch, are padded only to its longest clip, and attention is the fused kernel.
---
half: score
"""

from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

KEYPOINTS = 42
SIGNS = 20


class SignClips(Dataset):
    """Clips of different lengths, stored in one flat tensor of frames."""

    def __init__(self, num: int, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(16, 80, (num,), generator=gen)
        self.labels = torch.randint(0, SIGNS, (num,), generator=gen)
        self.offsets = F.pad(self.lengths.cumsum(dim=0), (1, 0)).tolist()
        poses = torch.randn(SIGNS, 2 * KEYPOINTS, generator=gen)
        self.frames = torch.randn(self.offsets[-1], 2 * KEYPOINTS, generator=gen)
        self.frames += 0.15 * poses[self.labels.repeat_interleave(self.lengths)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, clip: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.frames[self.offsets[clip] : self.offsets[clip + 1]], self.labels[clip]


class LengthBatchSampler(Sampler[list[int]]):
    """Batches of clips with similar lengths, in random order."""

    def __init__(self, lengths: torch.Tensor, batch_size: int) -> None:
        self.lengths = lengths
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.lengths) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        noisy = self.lengths + 4 * torch.rand(len(self.lengths))
        batches = noisy.argsort()[: len(self) * self.batch_size].view(-1, self.batch_size)
        yield from batches[torch.randperm(len(batches))].tolist()


def collate(clips: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad to the longest clip of the batch and mark the padding."""
    frames = pad_sequence([clip for clip, _ in clips], batch_first=True)
    lengths = torch.tensor([len(clip) for clip, _ in clips])
    padding = torch.arange(frames.shape[1]) >= lengths[:, None]
    return frames, padding, torch.stack([label for _, label in clips])


class EncoderBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class SignRecognizer(L.LightningModule):
    def __init__(self, dim: int = 64, heads: int = 4, depth: int = 2, lr: float = 1e-3) -> None:
        super().__init__()
        self.project = nn.Linear(2 * KEYPOINTS, dim)
        self.position = nn.Parameter(0.02 * torch.randn(80, dim))
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, SIGNS)
        self.lr = lr

    def forward(self, frames: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        keep = ~padding
        h = self.project(frames) + self.position[: frames.shape[1]]
        for block in self.blocks:
            h = block(h, keep[:, None, None, :])
        weights = keep.unsqueeze(-1) / keep.sum(dim=1).view(-1, 1, 1)
        return self.head((h * weights).sum(dim=1))

    def training_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> torch.Tensor:
        frames, padding, labels = batch
        loss = F.cross_entropy(self(frames, padding), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(labels))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01, fused=True)


def main() -> None:
    L.seed_everything(42)
    clips = SignClips(num=4800, seed=42)
    loader = DataLoader(clips, batch_sampler=LengthBatchSampler(clips.lengths, batch_size=32), collate_fn=collate)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SignRecognizer(), loader)
    print(f"train loss {trainer.callback_metrics['train_loss']:.4f}")


if __name__ == "__main__":
    main()
