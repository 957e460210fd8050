"""A convolutional policy and value network for chess positions is trained with a learning-rate warm-up in
optimizer_step, which calls the closure itself before handing it to the optimizer, so that each step runs forward
and backward twice.
---
expect: PD610
fix:
  ? |2
            optimizer_closure()  # costs time
  : ""
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANES, MOVES, WARMUP, RATE = 14, 1858, 40, 2e-3


class Positions(Dataset):
    """Boards as stacks of 8 x 8 planes, with the move played and the game's result."""

    def __init__(self, count):
        gen = torch.Generator().manual_seed(64)
        piece = torch.randint(0, PLANES + 8, (count, 64), generator=gen)
        planes = F.one_hot(piece, PLANES + 8)[..., :PLANES].transpose(1, 2).reshape(count, PLANES, 8, 8)
        self.planes = planes.to(torch.uint8)
        value = torch.linspace(-1, 1, PLANES)
        balance = torch.einsum("npij,p->n", planes.float(), value) / 4
        self.result = torch.tanh(balance + 0.3 * torch.randn(count, generator=gen))
        self.move = (piece[:, :8] * torch.tensor([1, 3, 7, 11, 19, 31, 43, 59])).sum(1) % MOVES

    def __len__(self):
        return len(self.move)

    def __getitems__(self, index):
        return self.planes[index].float(), self.move[index], self.result[index]


def as_is(batch):
    return batch


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(8, width),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


class ChessNet(lightning.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(PLANES, width, 3, padding=1), nn.ReLU(), Residual(width), Residual(width), Residual(width)
        )
        self.policy = nn.Sequential(nn.Conv2d(width, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, MOVES))
        self.value = nn.Sequential(nn.Conv2d(width, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 64, 1), nn.Tanh())

    def forward(self, planes):
        shared = self.tower(planes)
        return self.policy(shared), self.value(shared).squeeze(1)

    def training_step(self, batch, batch_idx):
        planes, move, result = batch
        logits, value = self(planes)
        return F.cross_entropy(logits, move) + F.mse_loss(value, result)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer_closure()  # costs time
        scale = min(1.0, (self.trainer.global_step + 1) / WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = RATE * scale
        optimizer.step(closure=optimizer_closure)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(8, verbose=False)
    loader = DataLoader(Positions(80 * 32), batch_size=32, shuffle=True, collate_fn=as_is, drop_last=True)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ChessNet(), loader)
