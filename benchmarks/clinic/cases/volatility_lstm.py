"""An LSTM forecasts next-day volatility of a panel of assets from windows of daily features. Because pandas hands over
float64, the model is trained in double precision throughout.
---
expect: PD315
fix:
  ? "torch.from_numpy(np.concatenate(windows))"
  : "torch.from_numpy(np.concatenate(windows)).float()"
  ? "torch.from_numpy(np.concatenate(targets))"
  : "torch.from_numpy(np.concatenate(targets)).float()"
  precision="64-true": precision="32-true"
half: score
"""

import lightning as L
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WINDOW, N_ASSETS, N_DAYS = 24, 8, 1000


def simulate_panel(seed=21):
    """GARCH(1,1) returns with a common factor, as a long table (date, asset, ret, volume)."""
    rng = np.random.default_rng(seed)
    dates = pd.bdate_range("2018-01-01", periods=N_DAYS)
    market = rng.standard_t(6, N_DAYS) * 0.006
    frames = []
    for asset in range(N_ASSETS):
        omega, alpha, beta = 2e-6, rng.uniform(0.05, 0.12), rng.uniform(0.82, 0.87)
        var, ret = 1e-4, np.empty(N_DAYS)
        for day in range(N_DAYS):
            ret[day] = np.sqrt(var) * rng.standard_normal() + 0.5 * market[day]
            var = omega + alpha * ret[day] ** 2 + beta * var
        volume = np.exp(rng.normal(12, 0.3, N_DAYS) + 20 * np.abs(ret))
        frames.append(pd.DataFrame({"date": dates, "asset": asset, "ret": ret, "volume": volume}))
    return pd.concat(frames, ignore_index=True)


def build_features(group):
    feats = pd.DataFrame({"ret": group.ret, "abs": group.ret.abs(), "neg": group.ret.clip(upper=0)})
    for span in (5, 10, 22):
        feats[f"vol{span}"] = group.ret.rolling(span).std()
        feats[f"mean{span}"] = group.ret.rolling(span).mean()
    feats["volume"] = np.log(group.volume).diff()
    return ((feats - feats.mean()) / feats.std()).fillna(0.0)


def make_dataset(panel):
    windows, targets = [], []
    for _, group in panel.groupby("asset"):
        values = build_features(group).to_numpy()
        view = np.lib.stride_tricks.sliding_window_view(values, WINDOW, axis=0)[:-1]
        windows.append(np.ascontiguousarray(view.transpose(0, 2, 1)))
        targets.append(np.log(group.ret.abs().to_numpy()[WINDOW:] + 1e-4))
    return TensorDataset(torch.from_numpy(np.concatenate(windows)), torch.from_numpy(np.concatenate(targets)))


class VolatilityLSTM(L.LightningModule):
    def __init__(self, n_features, hidden=64, layers=2, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.rnn = nn.LSTM(n_features, hidden, layers, batch_first=True, dropout=0.1)
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1])

    def _loss(self, batch):
        x, y = batch
        mean, log_var = self(x).unbind(-1)
        return nn.functional.gaussian_nll_loss(mean, y, log_var.exp())

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train_nll", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_nll", self._loss(batch), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


def main():
    L.seed_everything(21)
    panel = simulate_panel()
    cut = panel.date.unique()[int(N_DAYS * 0.88)]
    train = make_dataset(panel[panel.date < cut])
    val = make_dataset(panel[panel.date >= cut])
    trainer = L.Trainer(
        accelerator="cpu",
        precision="64-true",
        max_epochs=4,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(
        VolatilityLSTM(train.tensors[0].shape[-1]),
        DataLoader(train, batch_size=64, shuffle=True),
        DataLoader(val, batch_size=256),
    )
    print("val nll", float(trainer.callback_metrics["val_nll"]))


if __name__ == "__main__":
    main()
