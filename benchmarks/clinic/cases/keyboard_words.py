"""Trains a next-word model for a mobile keyboard: a deep residual network over the last words of a message, with a
lower learning rate for lower layers. Each parameter has an optimizer group of its own, so that the fused AdamW and
the scheduler work parameter by parameter; collect the parameters of equal learning rate and weight decay in one
group.
---
expect: PD340
fix:
  ? |2-
            groups = []
            for name, parameter in self.named_parameters():
                rate = self.hparams.learning_rate * self.hparams.layer_decay ** (self.depth - self.layer_of(name))
                decay = self.hparams.weight_decay if parameter.ndim > 1 else 0.0
                groups.append({"params": [parameter], "lr": rate, "weight_decay": decay})  # costs time
            optimizer = torch.optim.AdamW(groups, fused=True)
  : |2-
            groups = {}
            for name, parameter in self.named_parameters():
                rate = self.hparams.learning_rate * self.hparams.layer_decay ** (self.depth - self.layer_of(name))
                decay = self.hparams.weight_decay if parameter.ndim > 1 else 0.0
                groups.setdefault((rate, decay), []).append(parameter)
            optimizer = torch.optim.AdamW(
                [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()],
                fused=True,
            )
half: tune
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

VOCABULARY = 800
LENGTH = 12
CONTEXT = 5


def typed_messages(count, seed=0):
    """Contexts and next words of messages: frequent words (Zipf) with a few likely successors each."""
    rng = np.random.default_rng(seed)
    frequency = 1.0 / np.arange(1, VOCABULARY + 1)
    frequency /= frequency.sum()
    successors = rng.choice(VOCABULARY, (VOCABULARY, 4), p=frequency)
    messages = np.empty((count, LENGTH + 1), np.int64)
    messages[:, 0] = rng.choice(VOCABULARY, count, p=frequency)
    for position in range(1, LENGTH + 1):
        likely = successors[messages[:, position - 1], rng.integers(4, size=count)]
        free = rng.choice(VOCABULARY, count, p=frequency)
        messages[:, position] = np.where(rng.random(count) < 0.6, likely, free)
    windows = torch.from_numpy(messages).unfold(1, CONTEXT + 1, 1).flatten(0, 1)
    return TensorDataset(windows[:, :-1].contiguous(), windows[:, -1].contiguous())


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class NextWordModel(L.LightningModule):
    def __init__(self, width=48, layers=28, learning_rate=3e-3, layer_decay=0.9, weight_decay=0.05, warmup=50):
        super().__init__()
        self.save_hyperparameters()
        self.depth = layers + 1
        self.words = nn.Embedding(VOCABULARY, width)
        self.context = nn.Linear(CONTEXT * width, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def layer_of(self, name):
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        return self.depth if name.startswith("norm.") else 0

    def forward(self, words):
        x = self.context(self.words(words).flatten(1))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)

    def training_step(self, batch, batch_idx):
        context, word = batch
        loss = F.cross_entropy(self(context), word)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        groups = []
        for name, parameter in self.named_parameters():
            rate = self.hparams.learning_rate * self.hparams.layer_decay ** (self.depth - self.layer_of(name))
            decay = self.hparams.weight_decay if parameter.ndim > 1 else 0.0
            groups.append({"params": [parameter], "lr": rate, "weight_decay": decay})  # costs time
        optimizer = torch.optim.AdamW(groups, fused=True)
        warmup, steps = self.hparams.warmup, self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warmup, max(0.0, (steps - step) / (steps - warmup)))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    L.seed_everything(41)
    messages = typed_messages(4_200)
    sampler = BatchSampler(RandomSampler(messages), batch_size=32, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(NextWordModel(), DataLoader(messages, sampler=sampler, batch_size=None))
    print(f"train loss {trainer.callback_metrics['train_loss']:.4f}")


if __name__ == "__main__":
    main()
