"""A gated deep-set network predicts solubility from frozen substructure vectors, and its time goes to the weight-
averaging callback.
---
expect:
- PD504
- PD511
fix:
  module.state_dict().items(): module.named_parameters()
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
VOCAB, DIM, ATOMS = 120_000, 128, 24


def make_molecules(n, seed):
    """Each molecule is 24 substructure ids; its solubility depends on a few of their hidden traits."""
    g = torch.Generator().manual_seed(seed)
    ids = (torch.rand(n, ATOMS, generator=g) ** 3 * VOCAB).long()
    trait = torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(0))
    t = trait[ids].mean(1)
    y = t[:, 0] * t[:, 1] * 8 + torch.tanh(3 * t[:, 2]) + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(ids, y)


def loader(data, size, shuffle):
    order = RandomSampler(data) if shuffle else range(len(data))
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


class Averaging(Callback):
    """Exponential moving average of the model, put in place when the training ends."""

    def __init__(self, decay=0.99):
        self.decay = decay
        self.shadow = {}

    def current(self, module):
        return {name: t.detach() for name, t in module.state_dict().items()}

    def on_train_start(self, trainer, pl_module):
        self.shadow = {name: t.clone() for name, t in self.current(pl_module).items()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for name, t in self.current(pl_module).items():
            self.shadow[name].lerp_(t, 1 - self.decay)  # costs time

    def on_train_end(self, trainer, pl_module):
        pl_module.load_state_dict(self.shadow, strict=False)


class Solubility(L.LightningModule):
    def __init__(self, vectors, width=160):
        super().__init__()
        self.register_buffer("vectors", vectors)
        self.atom = nn.Sequential(nn.Linear(DIM, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.gate = nn.Linear(width, 1)
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, ids):
        h = self.atom(F.embedding(ids, self.vectors))
        w = torch.softmax(self.gate(h), dim=1)
        return self.head((w * h).sum(1)).squeeze(-1)

    def training_step(self, batch, _):
        ids, y = batch
        loss = F.mse_loss(self(ids), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        ids, y = batch
        self.log("val_loss", F.mse_loss(self(ids), y), batch_size=len(y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, fused=True)


def main():
    L.seed_everything(21)
    vectors = torch.randn(VOCAB, DIM) * 0.5
    model = Solubility(vectors)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=5,
        callbacks=[Averaging()],
    )
    train = loader(make_molecules(9600, 1), 96, True)
    val = loader(make_molecules(1024, 2), 512, False)
    trainer.fit(model, train, val)
    print("loss", float(trainer.callback_metrics["loss"]), "val", float(trainer.callback_metrics["val_loss"]))


if __name__ == "__main__":
    main()
