"""Trains a message-passing network for the glass transition of polymers, with manual optimization: two optimizers and
gradients accumulated over two batches.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

MONOMERS = 24
KINDS = 16
ACCUMULATE = 2


def synthetic_chains(count, seed):
    """Rings of monomers; stiff neighbors raise the transition temperature (scaled to about unit size)."""
    gen = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (count, MONOMERS), generator=gen)
    stiffness = torch.rand(KINDS, generator=gen)[kind]
    pairs = (stiffness * stiffness.roll(1, 1)).mean(1)
    return kind, 4 * pairs + 0.05 * torch.randn(count, generator=gen)


class Message(nn.Module):
    """A monomer hears from its left and right neighbor in the ring."""

    def __init__(self, width):
        super().__init__()
        self.left = nn.Linear(width, width, bias=False)
        self.right = nn.Linear(width, width, bias=False)
        self.update = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, h):
        heard = self.left(h).roll(1, 1) + self.right(h).roll(-1, 1)
        return h + self.update(F.relu(h + heard))


class PolymerNet(lightning.LightningModule):
    def __init__(self, width=144):
        super().__init__()
        self.automatic_optimization = False
        self.kind = nn.Embedding(KINDS, width)
        self.messages = nn.Sequential(*(Message(width) for _ in range(3)))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, kind):
        return self.head(self.messages(self.kind(kind)).mean(1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        kind, transition = batch
        optimizers = self.optimizers()
        loss = F.mse_loss(self(kind), transition)
        self.manual_backward(loss / ACCUMULATE)
        if (batch_idx + 1) % ACCUMULATE == 0:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    def configure_optimizers(self):
        body = [*self.kind.parameters(), *self.messages.parameters()]
        return [
            torch.optim.AdamW(body, lr=5e-4, fused=True),
            torch.optim.AdamW(self.head.parameters(), lr=2e-3, fused=True),
        ]


if __name__ == "__main__":
    lightning.seed_everything(37, verbose=False)
    chains = TensorDataset(*synthetic_chains(2496, seed=14))
    batches = BatchSampler(RandomSampler(chains), batch_size=48, drop_last=True)
    loader = DataLoader(chains, sampler=batches, batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PolymerNet(), loader)
