"""A shared trunk with four heads predicts molecular properties from descriptors, each label partly missing. The
mistake: the losses of the heads are backpropagated one after another instead of as one sum.
---
expect: PD331
fix:
  ? |2
            for name, loss in losses.items():
                self.manual_backward(self.task_weight[name] * loss, retain_graph=True)  # costs time
  : |2
            self.manual_backward(sum(self.task_weight[name] * loss for name, loss in losses.items()))
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

TASKS = ("solubility", "logp", "melting_point", "toxicity")
DESCRIPTORS = 256


class PropertyNet(L.LightningModule):
    def __init__(self, hidden=448, lr=0.02):
        super().__init__()
        self.automatic_optimization = False
        self.trunk = nn.Sequential(
            nn.Linear(DESCRIPTORS, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
        )
        self.heads = nn.ModuleDict({task: nn.Linear(hidden, 1) for task in TASKS})
        self.task_weight = {"solubility": 1.0, "logp": 1.0, "melting_point": 0.5, "toxicity": 2.0}
        self.lr = lr

    def forward(self, x):
        hidden = self.trunk(x)
        return {task: head(hidden).squeeze(-1) for task, head in self.heads.items()}

    def losses(self, batch):
        x, y = batch
        losses = {}
        for column, (task, prediction) in enumerate(self(x).items()):
            known = ~y[:, column].isnan()
            error = prediction - y[:, column].nan_to_num()
            losses[task] = (error.square() * known).sum() / known.sum().clamp(min=1)
        return losses

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        losses = self.losses(batch)
        optimizer.zero_grad()
        for name, loss in losses.items():
            self.manual_backward(self.task_weight[name] * loss, retain_graph=True)  # costs time
        optimizer.step()
        self.log("train_mse", torch.stack(list(losses.values())).detach().mean())

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def validation_step(self, batch, batch_idx):
        losses = self.losses(batch)
        self.log("val_mse", torch.stack(list(losses.values())).mean(), batch_size=len(batch[0]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def make_molecules(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, DESCRIPTORS, generator=generator)
    mix = torch.randn(DESCRIPTORS, len(TASKS), generator=torch.Generator().manual_seed(99)) / DESCRIPTORS**0.5
    y = torch.tanh(x @ mix) + 0.1 * torch.randn(n, len(TASKS), generator=generator)
    y[torch.rand(n, len(TASKS), generator=generator) < 0.3] = float("nan")
    return TensorDataset(x, y)


def make_loader(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(21)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        PropertyNet(),
        make_loader(make_molecules(17_920, seed=0), batch_size=256, shuffle=True),
        make_loader(make_molecules(2_048, seed=1), batch_size=512, shuffle=False),
    )
