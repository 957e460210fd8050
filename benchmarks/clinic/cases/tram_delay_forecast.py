"""Trains an MLP with embeddings that forecasts the delay of trams at stops and writes a CSV log; the error of each of
60 lines is passed to self.log in every training step, to be averaged over the epoch.
---
expect: PD502
fix:
  ? |2-
        def forward(self, line, stop, numeric):
  : |2-
        def on_train_epoch_start(self):
            self.line_error, self.steps = torch.zeros(LINES), 0

        def forward(self, line, stop, numeric):
  ? |2-
            for i, value in enumerate(per_line):
                self.log(f"mae/line_{i}", value, on_step=False, on_epoch=True, batch_size=1)  # costs time
  : |2-
            self.line_error += per_line
            self.steps += 1
  ? |2-
        def configure_optimizers(self):
  : |2-
        def on_train_epoch_end(self):
            self.log_dict({f"mae/line_{i}": e for i, e in enumerate((self.line_error / self.steps).tolist())})

        def configure_optimizers(self):
half: score
"""

import tempfile

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

LINES, STOPS, NUMERIC = 60, 700, 24


class Arrivals(Dataset):
    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        self.line = torch.randint(LINES, (count,), generator=gen)
        self.stop = torch.randint(STOPS, (count,), generator=gen)
        self.numeric = torch.randn(count, NUMERIC, generator=gen)
        noise = 0.3 * torch.randn(count, generator=gen)
        self.delay = self.numeric[:, :4].sum(1) + 0.02 * self.line + torch.sin(self.stop.float()) + noise

    def __len__(self):
        return len(self.delay)

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.line[index], self.stop[index], self.numeric[index], self.delay[index]


def as_is(batch):
    return batch


class DelayModel(lightning.LightningModule):
    def __init__(self, width: int = 320):
        super().__init__()
        self.line = nn.Embedding(LINES, 16)
        self.stop = nn.Embedding(STOPS, 24)
        self.net = nn.Sequential(
            nn.Linear(16 + 24 + NUMERIC, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 1),
        )

    def forward(self, line, stop, numeric):
        return self.net(torch.cat([self.line(line), self.stop(stop), numeric], 1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        line, stop, numeric, delay = batch
        forecast = self(line, stop, numeric)
        error = (forecast.detach() - delay).abs()
        per_line = torch.zeros(LINES).index_add_(0, line, error) / torch.bincount(line, minlength=LINES).clamp(min=1)
        for i, value in enumerate(per_line):
            self.log(f"mae/line_{i}", value, on_step=False, on_epoch=True, batch_size=1)  # costs time
        return F.huber_loss(forecast, delay)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(6, verbose=False)
    loader = DataLoader(Arrivals(1024 * 60, seed=1), batch_size=1024, shuffle=True, collate_fn=as_is)
    folder = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=CSVLogger(folder),
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DelayModel(), loader)
