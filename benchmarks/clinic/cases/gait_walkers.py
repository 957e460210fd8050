"""A recurrent network with an orthogonal state matrix recognizes who walks from windows of an accelerometer's signal.
The orthogonal matrix is a parametrization of PyTorch, which is computed again at every access, i.e. at every time step
of the loop, although the parameters do not change within the forward pass.
---
expect: PD328
fix:
  ? |2-
            for drive in self.input(windows).unbind(1):
                state = torch.tanh(drive + self.recurrent(state))  # costs time
  : |2-
            with nn.utils.parametrize.cached():
                for drive in self.input(windows).unbind(1):
                    state = torch.tanh(drive + self.recurrent(state))
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import DataLoader, Dataset

WALKERS = 10
STEPS = 32


class GaitWindows(Dataset):
    """Windows of six axes (acceleration and rotation); each walker has his own harmonics and cadence."""

    def __init__(self, count):
        self.walker = torch.randint(0, WALKERS, (count,))
        cadence = torch.linspace(0.7, 1.3, WALKERS)
        harmonics = torch.randn(WALKERS, 6, 3) * torch.tensor([1.0, 0.6, 0.3])
        offsets = torch.rand(WALKERS, 6, 3) * 6.28
        phase = torch.rand(count, 1, 1, 1) * 6.28
        time = torch.arange(STEPS).view(1, 1, 1, STEPS) * 0.4
        order = torch.arange(1, 4).view(1, 1, 3, 1)
        pace = (cadence[self.walker] * (1 + 0.03 * torch.randn(count))).view(-1, 1, 1, 1)
        waves = torch.sin(order * (pace * time + phase) + offsets[self.walker].unsqueeze(3))
        signal = (waves * harmonics[self.walker].unsqueeze(3)).sum(2).transpose(1, 2)
        self.windows = (signal + 0.3 * torch.randn_like(signal)).contiguous()

    def __len__(self):
        return len(self.walker)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.windows[rows], self.walker[rows]


class WalkerRecognition(L.LightningModule):
    def __init__(self, hidden=64, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.hidden = hidden
        self.input = nn.Linear(6, hidden)
        # an orthogonal state matrix neither lets the gradient vanish nor explode
        self.recurrent = orthogonal(nn.Linear(hidden, hidden, bias=False), orthogonal_map="cayley")
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, WALKERS))

    def forward(self, windows):
        state = windows.new_zeros(len(windows), self.hidden)
        for drive in self.input(windows).unbind(1):
            state = torch.tanh(drive + self.recurrent(state))  # costs time
        return self.head(state)

    def training_step(self, batch, batch_idx):
        windows, walker = batch
        return F.cross_entropy(self(windows), walker)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return [optimizer], [scheduler]


def identity(batch):
    return batch


def main():
    L.seed_everything(3)
    data = GaitWindows(10_240)
    loader = DataLoader(data, batch_size=256, shuffle=True, drop_last=True, collate_fn=identity)
    model = WalkerRecognition()
    trainer = L.Trainer(
        max_epochs=6,
        accelerator="cpu",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        right = (model(data.windows[:2000]).argmax(1) == data.walker[:2000]).float().mean()
    print(f"recognized: {right:.3f}")


if __name__ == "__main__":
    main()
