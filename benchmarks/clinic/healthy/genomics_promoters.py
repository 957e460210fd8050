"""A dilated convolution network that finds promoters in DNA, with accumulated gradients and a callback that watches
the balance of the two strands.
---
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

LENGTH = 128


def sequences(count, seed):
    """Random DNA; half of it carries two boxes at about the usual distance."""
    g = torch.Generator().manual_seed(seed)
    bases = torch.randint(0, 4, (count, LENGTH), generator=g, dtype=torch.uint8)
    label = torch.rand(count, generator=g) < 0.5
    start = torch.randint(20, LENGTH - 60, (count, 1), generator=g)
    for shift, box in ((0, [3, 3, 2, 0, 1, 0]), (23, [3, 0, 3, 0, 0, 3])):
        place = start + shift + torch.arange(6)
        kept = torch.where(label[:, None], torch.tensor(box, dtype=torch.uint8), bases.gather(1, place))
        bases.scatter_(1, place, kept)
    return TensorDataset(bases, label.float())


class StrandBalance(lightning.Callback):
    """The running mean of how much the two strands of a sequence disagree, reported once per epoch."""

    def on_train_epoch_start(self, trainer, module):
        self.total, self.batches = torch.zeros(()), 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.total += outputs["gap"]
        self.batches += 1

    def on_train_epoch_end(self, trainer, module):
        module.log("strand_gap", self.total / self.batches)


class Promoters(lightning.LightningModule):
    def __init__(self, width=48):
        super().__init__()
        self.base = nn.Embedding(4, width)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 7, padding=3 * dilation, dilation=dilation) for dilation in (1, 2, 4)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, bases):
        x = self.base(bases.int()).transpose(1, 2)
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return self.head(x.amax(2)).squeeze(1)

    def training_step(self, batch, batch_idx):
        bases, label = batch
        both = self(torch.cat([bases, 3 - bases.flip(1)]))
        forward, backward = both.chunk(2)
        loss = F.binary_cross_entropy_with_logits(torch.maximum(forward, backward), label)
        return {"loss": loss, "gap": (forward - backward).detach().abs().mean()}

    def validation_step(self, batch, batch_idx):
        bases, label = batch
        logits = torch.maximum(self(bases), self(3 - bases.flip(1)))
        self.log("val_accuracy", ((logits > 0) == (label > 0)).float().mean(), batch_size=len(label))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def loader(dataset, batch_size, shuffle=False):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    lightning.seed_everything(17, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=2,
        callbacks=[StrandBalance()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Promoters(), loader(sequences(3520, seed=1), 32, shuffle=True), loader(sequences(256, seed=2), 64))
