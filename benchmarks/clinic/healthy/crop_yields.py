"""Trains a yield model from weekly weather, soil and variety with gradient accumulation and a validation metric per
epoch.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler
from torchmetrics import MeanAbsoluteError

WEEKS, SENSORS, SOIL, VARIETIES = 30, 12, 16, 60


class Fields(Dataset):
    """Season, soil, variety and yield of fields; an index list gives a whole batch."""

    def __init__(self, weather, soil, variety, tonnes):
        self.columns = (weather, soil, variety, tonnes)

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, index):
        index = torch.as_tensor(index)
        return [column[index] for column in self.columns]


class YieldModel(lightning.LightningModule):
    def __init__(self, width=384):
        super().__init__()
        self.variety = nn.Embedding(VARIETIES, 16)
        self.season = nn.Sequential(nn.Flatten(), nn.Linear(WEEKS * SENSORS, width), nn.ReLU())
        self.trunk = nn.Sequential(
            nn.Linear(width + SOIL + 16, width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        self.criterion = nn.HuberLoss()
        self.val_mae = MeanAbsoluteError()

    def forward(self, weather, soil, variety):
        joined = torch.cat([self.season(weather), soil, self.variety(variety)], dim=1)
        return self.trunk(joined).squeeze(1)

    def training_step(self, batch, batch_idx):
        weather, soil, variety, tonnes = batch
        return self.criterion(self(weather, soil, variety), tonnes)

    def validation_step(self, batch, batch_idx):
        weather, soil, variety, tonnes = batch
        self.val_mae.update(self(weather, soil, variety), tonnes)

    def on_validation_epoch_end(self):
        self.log("val_mae", self.val_mae.compute())
        self.val_mae.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-3, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def make_fields(count, seed):
    generator = torch.Generator().manual_seed(seed)
    weather = torch.randn(count, WEEKS, SENSORS, generator=generator)
    soil = torch.randn(count, SOIL, generator=generator)
    variety = torch.randint(0, VARIETIES, (count,), generator=generator)
    tonnes = weather[:, 8:16].mean(dim=(1, 2)) * 4 + soil[:, 0] * soil[:, 1] + 0.02 * variety
    tonnes = tonnes + 0.2 * torch.randn(count, generator=generator)
    return Fields(weather, soil, variety, tonnes)


def batches(fields, batch_size, shuffle):
    order = RandomSampler(fields) if shuffle else SequentialSampler(fields)
    return DataLoader(fields, batch_size=None, sampler=BatchSampler(order, batch_size, drop_last=shuffle))


if __name__ == "__main__":
    lightning.seed_everything(31)
    train = batches(make_fields(36_864, seed=1), batch_size=256, shuffle=True)
    val = batches(make_fields(4096, seed=2), batch_size=1024, shuffle=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=6,
        accumulate_grad_batches=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(YieldModel(), train, val)
