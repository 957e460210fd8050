"""Trains an LSTM language model on logs of TLS handshakes and samples a few log lines at the end of each epoch.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EVENTS = 400
WINDOW = 64


def synthetic_log(lines, seed):
    """A stream of event tokens: sessions go through phases (hello, keys, records, alert), each with its events."""
    gen = torch.Generator().manual_seed(seed)
    phase = (torch.arange(lines * WINDOW) // 7) % 8
    event = (torch.rand(lines * WINDOW, generator=gen) ** 3 * 50).long()
    return (phase * 50 + event).view(lines, WINDOW)


class SampleLines(lightning.Callback):
    """Keeps some sampled log lines of each epoch for the report."""

    def __init__(self, lines=4, length=48):
        self.lines, self.length = lines, length
        self.report = []

    @torch.inference_mode()
    def on_train_epoch_end(self, trainer, module):
        token = torch.zeros(self.lines, 1, dtype=torch.long, device=module.device)
        state, written = None, []
        for _ in range(self.length):
            logits, state = module(token, state)
            token = torch.multinomial(logits[:, -1].softmax(-1), 1)
            written.append(token)
        self.report.append([" ".join(f"ev{event}" for event in row) for row in torch.cat(written, 1).tolist()])


class LogModel(lightning.LightningModule):
    def __init__(self, width=192):
        super().__init__()
        self.event = nn.Embedding(EVENTS, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, EVENTS)

    def forward(self, tokens, state=None):
        hidden, state = self.lstm(self.event(tokens), state)
        return self.out(hidden), state

    def training_step(self, batch, batch_idx):
        (tokens,) = batch
        logits, _ = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 6e-3, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    lightning.seed_everything(41, verbose=False)
    log = TensorDataset(synthetic_log(700, seed=15))
    loader = DataLoader(log, batch_size=20, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SampleLines()],
    )
    trainer.fit(LogModel(), loader)
