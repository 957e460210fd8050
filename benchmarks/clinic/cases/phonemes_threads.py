"""PyTorch uses more threads than the machine has cores.
---
expect:
- PD803
half: tune
cores: 2
fix:
  'os.environ.get("SLURM_CPUS_PER_TASK", 4)': 'os.environ.get("SLURM_CPUS_PER_TASK", 1)'
"""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_BANDS = 40
N_PHONEMES = 32

torch.set_num_threads(int(os.environ.get("SLURM_CPUS_PER_TASK", 4)))


def make_utterances(n, n_frames=32):
    generator = torch.Generator().manual_seed(0)
    phonemes = torch.randint(0, N_PHONEMES, (n, n_frames // 4), generator=generator).repeat_interleave(4, dim=1)
    spectra = torch.randn(N_PHONEMES, N_BANDS, generator=generator)
    return spectra[phonemes] + torch.randn(n, n_frames, N_BANDS, generator=generator), phonemes


class PhonemeRecogniser(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(N_BANDS, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
        )
        self.gru = nn.GRU(64, 64, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, N_PHONEMES)

    def training_step(self, batch, batch_idx):
        frames, phonemes = batch
        x = self.front(frames.transpose(1, 2)).transpose(1, 2)
        x, _ = self.gru(x)
        loss = F.cross_entropy(self.head(x).flatten(0, 1), phonemes.flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


L.seed_everything(1)
loader = DataLoader(TensorDataset(*make_utterances(2_560)), batch_size=32, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(PhonemeRecogniser(), loader)
