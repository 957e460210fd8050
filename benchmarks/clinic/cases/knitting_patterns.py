"""Predicts the next stitch of knitting patterns with a recurrent network whose state matrix is kept orthogonal.
The orthogonal matrix is computed again at every position of the row.
---
expect: [PD328, PD327]
half: score
fix:
  ? "logits = self(stitches[:, :-1])"
  : |-
    with nn.utils.parametrize.cached():
                logits = self(stitches[:, :-1])
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

STITCHES = 24
ROW = 17
MAX_STEPS = 220


def knitted_rows(rows: int, seed: int) -> torch.Tensor:
    """Rows that repeat a short motif, with a slip of the needle here and there."""
    generator = torch.Generator().manual_seed(seed)
    period = torch.randint(2, 7, (rows, 1), generator=generator)
    motif = torch.randint(0, STITCHES, (rows, 6), generator=generator)
    stitches = motif.gather(1, torch.arange(ROW).expand(rows, ROW) % period)
    slips = torch.rand(rows, ROW, generator=generator) < 0.03
    return torch.where(slips, torch.randint(0, STITCHES, (rows, ROW), generator=generator), stitches)


class PatternModule(L.LightningModule):
    def __init__(self, width: int = 64, learning_rate: float = 2e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.stitch = nn.Embedding(STITCHES, width)
        self.entry = nn.Linear(width, width)
        self.state = parametrizations.orthogonal(nn.Linear(width, width, bias=False))
        self.head = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, STITCHES))

    def forward(self, stitches: torch.Tensor) -> torch.Tensor:
        entries = self.entry(self.stitch(stitches)).unbind(dim=1)
        state = torch.zeros_like(entries[0])
        states = []
        for entry in entries:
            state = torch.tanh(entry + self.state(state))  # costs time
            states.append(state)
        return self.head(torch.stack(states, dim=1))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        (stitches,) = batch
        logits = self(stitches[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), stitches[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate, fused=True)


def main() -> None:
    L.seed_everything(12)
    dataset = TensorDataset(knitted_rows(rows=20_000, seed=12))
    batches = BatchSampler(RandomSampler(dataset), batch_size=256, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(PatternModule(), loader)


if __name__ == "__main__":
    main()
