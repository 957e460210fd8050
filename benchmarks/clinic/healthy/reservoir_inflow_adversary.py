"""Trains a regressor of reservoir inflow with an adversary that must not find the gauge station in its features
(manual optimization, two optimizers).
---
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

STATIONS, DAYS, VARIABLES = 12, 30, 8


class Catchments(Dataset):
    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        self.station = torch.randint(STATIONS, (count,), generator=gen)
        self.weather = torch.randn(count, DAYS * VARIABLES, generator=gen)
        self.weather[:, ::VARIABLES] += 0.3 * self.station[:, None]  # bias of the gauges
        decay = 0.9 ** torch.arange(DAYS).flip(0)
        self.inflow = self.weather[:, 1::VARIABLES] @ decay + self.weather[:, 2::VARIABLES].relu() @ decay
        self.inflow /= self.inflow.std()

    def __len__(self):
        return len(self.inflow)

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.weather[index], self.station[index], self.inflow[index]


def as_is(batch):
    return batch


class InflowModel(lightning.LightningModule):
    def __init__(self, width: int = 512):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(
            nn.Linear(DAYS * VARIABLES, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 64),
        )
        self.inflow = nn.Linear(64, 1)
        self.adversary = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, STATIONS))

    def forward(self, weather):
        return self.inflow(self.encoder(weather)).squeeze(1)

    def training_step(self, batch, batch_idx):
        weather, station, inflow = batch
        main, spy = self.optimizers()
        features = self.encoder(weather)

        # the adversary sees the features as constants: its graph ends there
        spy.zero_grad()
        self.manual_backward(F.cross_entropy(self.adversary(features.detach()), station))
        spy.step()

        # the same features, this time with their graph; the adversary's weights need no gradients here
        self.toggle_optimizer(main)
        confusion = F.cross_entropy(self.adversary(features), station)
        loss = F.mse_loss(self.inflow(features).squeeze(1), inflow) - 0.1 * confusion
        main.zero_grad()
        self.manual_backward(loss)
        main.step()
        self.untoggle_optimizer(main)

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def validation_step(self, batch, batch_idx):
        weather, _, inflow = batch
        self.log("val_mse", F.mse_loss(self(weather), inflow), batch_size=len(inflow))

    def configure_optimizers(self):
        main = torch.optim.AdamW([*self.encoder.parameters(), *self.inflow.parameters()], lr=1e-3, fused=True)
        spy = torch.optim.AdamW(self.adversary.parameters(), lr=1e-3, fused=True)
        return [main, spy], [torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in (main, spy)]


if __name__ == "__main__":
    lightning.seed_everything(8, verbose=False)
    train = DataLoader(Catchments(512 * 90, seed=1), batch_size=512, shuffle=True, collate_fn=as_is)
    valid = DataLoader(Catchments(2048, seed=2), batch_size=1024, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(InflowModel(), train, valid)
