"""Models the number of claims of motor insurance policies with a Poisson network on rating factors, with the exposure
as offset. Policies are held as tensors; training stops early when the validation deviance does not improve.
---
half: score
"""

import lightning as L
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

FACTORS = {"region": 22, "brand": 40, "fuel": 4, "use": 5, "bonus_class": 25}
NUMBERS = ["vehicle_age", "driver_age", "power", "density"]


def policies(count, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({name: rng.integers(levels, size=count) for name, levels in FACTORS.items()})
    table["vehicle_age"] = rng.exponential(7, count)
    table["driver_age"] = rng.uniform(18, 85, count)
    table["power"] = rng.gamma(6, 15, count)
    table["density"] = rng.lognormal(5, 1.5, count)
    table["exposure"] = rng.uniform(0.1, 1.0, count)
    effects = np.random.default_rng(0)
    score = sum(effects.normal(0, 0.15, levels)[table[name]] for name, levels in FACTORS.items())
    score += 0.8 * np.exp(-(table["driver_age"] - 18) / 8) + 0.1 * np.log(table["density"]) - 2.2
    table["claims"] = rng.poisson(table["exposure"] * np.exp(score))
    return table


class PolicyBatches(IterableDataset):
    """Batches of the columns of a portfolio, in a new random order in each epoch if `shuffle` is set."""

    def __init__(self, table, scale, batch_size, shuffle):
        self.factors = torch.from_numpy(table[list(FACTORS)].to_numpy())
        numbers = (np.log1p(table[NUMBERS]) - scale["mean"]) / scale["std"]
        self.numbers = torch.from_numpy(numbers.to_numpy(dtype=np.float32))
        self.log_exposure = torch.from_numpy(np.log(table["exposure"].to_numpy(dtype=np.float32)))
        self.claims = torch.from_numpy(table["claims"].to_numpy(dtype=np.float32))
        self.batch_size = batch_size
        self.shuffle = shuffle

    def __len__(self):
        return -(-len(self.claims) // self.batch_size)

    def __iter__(self):
        count = len(self.claims)
        order = torch.randperm(count) if self.shuffle else torch.arange(count)
        for chosen in order.split(self.batch_size):
            yield self.factors[chosen], self.numbers[chosen], self.log_exposure[chosen], self.claims[chosen]


class ClaimFrequency(L.LightningModule):
    def __init__(self, embedding=8, width=320, dropout=0.1, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        levels = torch.tensor(list(FACTORS.values()))
        self.register_buffer("offsets", torch.cumsum(levels, 0) - levels)
        self.levels = nn.Embedding(int(levels.sum()), embedding)
        self.network = nn.Sequential(
            nn.Linear(embedding * len(FACTORS) + len(NUMBERS), width),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(width, 1),
        )
        self.deviance = nn.PoissonNLLLoss(log_input=True)

    def forward(self, factors, numbers, log_exposure):
        embedded = self.levels(factors + self.offsets).flatten(1)
        return self.network(torch.cat([embedded, numbers], 1)).squeeze(1) + log_exposure

    def training_step(self, batch, batch_idx):
        factors, numbers, log_exposure, claims = batch
        loss = self.deviance(self(factors, numbers, log_exposure), claims)
        self.log("train_deviance", loss, on_step=False, on_epoch=True, batch_size=len(claims))
        return loss

    def validation_step(self, batch, batch_idx):
        factors, numbers, log_exposure, claims = batch
        loss = self.deviance(self(factors, numbers, log_exposure), claims)
        self.log("val_deviance", loss, batch_size=len(claims))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate, weight_decay=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_deviance"}}


def main():
    L.seed_everything(31)
    portfolio, holdout = policies(400_000, seed=1), policies(40_000, seed=2)
    logs = np.log1p(portfolio[NUMBERS])
    scale = {"mean": logs.mean(), "std": logs.std()}
    train = PolicyBatches(portfolio, scale, batch_size=1024, shuffle=True)
    val = PolicyBatches(holdout, scale, batch_size=8192, shuffle=False)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[EarlyStopping("val_deviance", patience=2)],
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(ClaimFrequency(), DataLoader(train, batch_size=None), DataLoader(val, batch_size=None))
    print(f"validation deviance {trainer.callback_metrics['val_deviance']:.5f}")


if __name__ == "__main__":
    main()
