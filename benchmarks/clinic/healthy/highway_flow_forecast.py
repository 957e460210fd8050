"""A spatio-temporal network forecasts the traffic flow of 60 highway sensors, with gradient accumulation and a
callback that keeps averaged weights and swaps them in for validation.
---
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SENSORS, PAST, AHEAD, WIDTH = 60, 24, 6, 48


class FlowWindows(Dataset):
    """Windows of one long recording; a batch is gathered with one indexing operation."""

    def __init__(self, start, count):
        gen = torch.Generator().manual_seed(63)
        hours = torch.arange(6000) / 12.0
        phase = torch.rand(SENSORS, generator=gen)
        daily = torch.sin(2 * torch.pi * (hours[:, None] / 24 + phase)) + 0.5 * torch.sin(
            2 * torch.pi * hours[:, None] / 6
        )
        self.flow = daily + 0.2 * torch.randn(6000, SENSORS, generator=gen)
        self.start, self.count = start, count
        self.span = torch.arange(PAST + AHEAD)

    def __len__(self):
        return self.count

    def __getitems__(self, index):
        window = self.flow[self.start + torch.tensor(index)[:, None] + self.span]
        return window[:, :PAST], window[:, PAST:]


def as_is(batch):
    return batch


class AveragedWeights(lightning.Callback):
    """Running average of the weights, used for validation."""

    def __init__(self, every=4, decay=0.98):
        self.every, self.weight, self.average, self.seen = every, 1 - decay, None, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.seen or trainer.global_step % self.every:
            return
        self.seen = trainer.global_step
        current = [p.detach() for p in pl_module.parameters()]
        if self.average is None:
            self.average = [p.clone() for p in current]
        else:
            torch._foreach_lerp_(self.average, current, self.weight)

    def swap(self, pl_module):
        if self.average is not None:
            for kept, used in zip(self.average, pl_module.parameters(), strict=True):
                kept.data, used.data = used.data, kept.data

    def on_validation_start(self, trainer, pl_module):
        self.swap(pl_module)

    def on_validation_end(self, trainer, pl_module):
        self.swap(pl_module)


class FlowNet(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        ring = torch.eye(SENSORS) + torch.eye(SENSORS).roll(1, 0) + torch.eye(SENSORS).roll(-1, 0)
        self.register_buffer("graph", ring / 3)
        self.time = nn.Sequential(nn.Linear(PAST, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.near = nn.ModuleList([nn.Linear(2 * WIDTH, 4 * WIDTH) for _ in range(3)])
        self.back = nn.ModuleList([nn.Linear(4 * WIDTH, WIDTH) for _ in range(3)])
        self.head = nn.Linear(WIDTH, AHEAD)

    def forward(self, past):
        x = self.time(past.transpose(1, 2))
        for near, back in zip(self.near, self.back, strict=True):
            x = x + back(F.gelu(near(torch.cat([x, self.graph @ x], dim=-1))))
        return self.head(x).transpose(1, 2)

    def training_step(self, batch, batch_idx):
        past, future = batch
        return F.smooth_l1_loss(self(past), future)

    def validation_step(self, batch, batch_idx):
        past, future = batch
        self.log("val_mae", F.l1_loss(self(past), future), batch_size=len(past))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(20, verbose=False)
    train = DataLoader(FlowWindows(0, 4800), batch_size=32, shuffle=True, collate_fn=as_is)
    valid = DataLoader(FlowWindows(4900, 1000), batch_size=250, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
        callbacks=[AveragedWeights()],
    )
    trainer.fit(FlowNet(), train, valid)
