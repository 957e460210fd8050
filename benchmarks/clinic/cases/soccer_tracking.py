"""Trains an attention model that forecasts the runs of the players of a soccer match; the preview picture of the
forecast is drawn in each step although only the last one of an epoch is saved.
---
expect: PD511
fix:
  "self.preview = draw(past[0], forecast[0].detach())": "self.preview = past[0], forecast[0].detach()"
  "self.preview.save(": "draw(*self.preview).save("
half: score
"""

import os
import tempfile

import lightning
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

PLAYERS = 22
PAST = 20
AHEAD = 10
PITCH = (105, 68)


def synthetic_clips(count, seed):
    """Positions in metres: smooth runs with a pull towards the (unseen) ball."""
    gen = torch.Generator().manual_seed(seed)
    start = torch.rand(count, PLAYERS, 1, 2, generator=gen) * torch.tensor(PITCH)
    ball = torch.rand(count, 1, 1, 2, generator=gen) * torch.tensor(PITCH)
    speed = torch.randn(count, PLAYERS, 1, 2, generator=gen) * 0.3 + 0.02 * (ball - start)
    time = torch.arange(PAST + AHEAD).view(1, 1, -1, 1)
    track = start + speed * time * 0.4 + 0.05 * torch.randn(count, PLAYERS, PAST + AHEAD, 2, generator=gen)
    return track[:, :, :PAST].contiguous(), track[:, :, PAST:].contiguous()


def draw(past, forecast, scale=12):
    """Picture of one clip: the known runs in white, the forecast in the color of the team."""
    canvas = Image.new("RGB", (PITCH[0] * scale, PITCH[1] * scale), (34, 110, 48))
    pen = ImageDraw.Draw(canvas)
    pen.rectangle((scale, scale, (PITCH[0] - 1) * scale, (PITCH[1] - 1) * scale), outline="white", width=3)
    for player, (known, ahead) in enumerate(zip((past * scale).tolist(), (forecast * scale).tolist(), strict=True)):
        color = (220, 50, 50) if player < PLAYERS // 2 else (60, 90, 230)
        pen.line([tuple(point) for point in known], fill="white", width=4)
        pen.line([tuple(point) for point in [known[-1], *ahead]], fill=color, width=6)
        x, y = known[-1]
        pen.ellipse((x - 10, y - 10, x + 10, y + 10), fill=color)
    return canvas.resize((PITCH[0] * 6, PITCH[1] * 6), Image.Resampling.LANCZOS)


class RunForecast(lightning.LightningModule):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Linear(2 * PAST, width)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.interact = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 2 * AHEAD)
        self.preview = None

    def forward(self, past):
        last = past[:, :, -1:]
        relative = torch.cat([(past[:, :, :-1] - last).flatten(2), last.flatten(2) / PITCH[0]], 2)
        moves = self.out(self.interact(self.embed(relative)))
        return last + moves.unflatten(2, (AHEAD, 2))

    def training_step(self, batch, batch_idx):
        past, ahead = batch
        forecast = self(past)
        self.preview = draw(past[0], forecast[0].detach())  # costs time
        return F.smooth_l1_loss(forecast, ahead)

    def on_train_epoch_end(self):
        folder = self.trainer.default_root_dir
        self.preview.save(os.path.join(folder, f"forecast_{self.current_epoch}.png"))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(13, verbose=False)
    clips = TensorDataset(*synthetic_clips(1920, seed=7))
    loader = DataLoader(clips, batch_size=32, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(),
    )
    trainer.fit(RunForecast(), loader)
