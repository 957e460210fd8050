"""Estimates the hours until arrival of cargo ships from their position reports, with a GRU over the padded route.
Each batch also carries the raw position reports as Python objects, and Lightning walks through all of them.
---
expect: PD205
fix:
  '"reports": [route["reports"] for route in routes],': ""
  'self.worst = (float(miss[row]), batch["reports"][row][-1])': |2-
    reports = self.fleet[int(batch["row"][row])]["reports"]
                    self.worst = (float(miss[row]), reports[-1])
half: score
"""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

FIELDS = ("lat", "lon", "speed", "course", "draught", "heading")


def sail(rng: np.random.Generator, row: int) -> dict:
    """One voyage: position reports every half hour up to a random moment, and the hours still to go."""
    steps = int(rng.integers(50, 70))
    speed = rng.uniform(9, 19)
    course = rng.uniform(0, 2 * np.pi) + rng.normal(0, 0.03, steps).cumsum()
    knots = speed + rng.normal(0, 0.6, steps)
    lat = 40 + (knots * np.cos(course)).cumsum() / 120
    lon = -20 + (knots * np.sin(course)).cumsum() / 90
    draught = np.full(steps, rng.uniform(7, 14))
    table = np.stack([lat, lon, knots, course, draught, course + rng.normal(0, 0.05, steps)], axis=1)
    hours = (3.0 * draught[0] + 0.5 * abs(lat[-1] - 40) + 30 * rng.beta(2, 2)) * 14 / speed
    reports = [
        {"mmsi": 200_000_000 + row, "seq": i, **dict(zip(FIELDS, values, strict=True))}
        for i, values in enumerate(table.tolist())
    ]
    return {"row": row, "track": table.astype(np.float32), "hours": np.float32(hours), "reports": reports}


class Voyages(Dataset):
    def __init__(self, fleet: list[dict], mean: np.ndarray, std: np.ndarray):
        self.fleet = fleet
        self.tracks = [torch.from_numpy((ship["track"] - mean) / std) for ship in fleet]

    def __len__(self) -> int:
        return len(self.fleet)

    def __getitem__(self, i: int) -> dict:
        ship = self.fleet[i]
        return {"row": i, "track": self.tracks[i], "hours": ship["hours"], "reports": ship["reports"]}


def collate_routes(routes: list[dict]) -> dict:
    tracks = [route["track"] for route in routes]
    return {
        "row": torch.tensor([route["row"] for route in routes]),
        "tracks": pad_sequence(tracks, batch_first=True),
        "lengths": torch.tensor([len(track) for track in tracks]),
        "hours": torch.tensor([route["hours"] for route in routes]),
        "reports": [route["reports"] for route in routes],
    }


class ArrivalModel(L.LightningModule):
    def __init__(self, fleet: list[dict], hidden: int = 32):
        super().__init__()
        self.fleet = fleet
        self.gru = nn.GRU(len(FIELDS), hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 1))
        self.worst = (0.0, None)

    def forward(self, tracks: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(tracks, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        return 50 + 20 * self.head(last[-1]).squeeze(1)

    def training_step(self, batch, batch_idx):
        hours = self(batch["tracks"], batch["lengths"])
        miss = (hours - batch["hours"]).abs()
        if batch_idx % 20 == 0:
            row = int(miss.argmax())
            if float(miss[row]) > self.worst[0]:
                self.worst = (float(miss[row]), batch["reports"][row][-1])
        loss = nn.functional.huber_loss(hours, batch["hours"], delta=6.0)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(hours))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def main():
    L.seed_everything(3)
    rng = np.random.default_rng(3)
    fleet = [sail(rng, row) for row in range(2400)]
    points = np.concatenate([ship["track"] for ship in fleet])
    voyages = Voyages(fleet, points.mean(0), points.std(0))
    loader = DataLoader(voyages, batch_size=64, shuffle=True, drop_last=True, collate_fn=collate_routes)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=5, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    model = ArrivalModel(fleet)
    trainer.fit(model, loader)
    print(trainer.callback_metrics["train_loss"].item(), model.worst[1])


if __name__ == "__main__":
    main()
