"""A wide network predicts match results from team form, while a callback keeps a moving average of its weights.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

TEAMS = 40
FORM = 64


class Matches(Dataset):
    """Two teams, their recent form, and loss, draw or win of the home team."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        strength = torch.randn(TEAMS, generator=torch.Generator().manual_seed(0))
        weight = torch.randn(FORM, generator=torch.Generator().manual_seed(1)) / FORM**0.5
        self.teams = torch.randint(0, TEAMS, (n, 2), generator=g)
        self.form = torch.randn(n, FORM, generator=g)
        edge = strength[self.teams[:, 0]] - strength[self.teams[:, 1]] + self.form @ weight + 0.3
        edge += torch.randn(n, generator=g)
        self.result = (edge > -0.5).long() + (edge > 0.5).long()

    def __len__(self):
        return len(self.result)

    def __getitems__(self, indices):
        return self.teams[indices], self.form[indices], self.result[indices]


def as_is(batch):
    return batch


class WeightAverage(lightning.Callback):
    """Exponential moving average of the weights, used in validation."""

    def __init__(self, decay=0.9, every=10):
        self.decay, self.every = decay, every
        self.average = []

    def on_fit_start(self, trainer, module):
        self.average = [p.detach().clone() for p in module.parameters()]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % self.every == 0:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, list(module.parameters()), 1 - self.decay)

    def swap(self, module):
        for i, p in enumerate(module.parameters()):
            p.data, self.average[i] = self.average[i], p.data

    def on_validation_epoch_start(self, trainer, module):
        self.swap(module)

    def on_validation_epoch_end(self, trainer, module):
        self.swap(module)


class OutcomeModel(lightning.LightningModule):
    def __init__(self, embedding=32, width=512):
        super().__init__()
        self.team = nn.Embedding(TEAMS, embedding)
        self.net = nn.Sequential(
            nn.Linear(2 * embedding + FORM, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 3),
        )

    def forward(self, teams, form):
        return self.net(torch.cat([self.team(teams).flatten(1), form], dim=1))

    def training_step(self, batch, batch_idx):
        teams, form, result = batch
        return F.cross_entropy(self(teams, form), result)

    def validation_step(self, batch, batch_idx):
        teams, form, result = batch
        self.log("val_loss", F.cross_entropy(self(teams, form), result), batch_size=len(result))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, fused=True)


def main():
    lightning.seed_everything(19)
    train, val = Matches(61_440, seed=1), Matches(5_120, seed=2)
    model = OutcomeModel()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        callbacks=[WeightAverage()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        DataLoader(train, batch_size=512, shuffle=True, drop_last=True, collate_fn=as_is),
        DataLoader(val, batch_size=1024, collate_fn=as_is),
    )
    print(f"validation loss {trainer.callback_metrics['val_loss']:.4f}")


if __name__ == "__main__":
    main()
