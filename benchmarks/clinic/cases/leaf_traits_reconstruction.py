"""A network learns the traits of leaves from their spectra; each step runs it once more without dropout, only to log an
error that no dropout disturbs.
---
expect: PD343
fix:
  "if True:  # in each step": "if (self.trainer.global_step + 1) % 50 == 0:"
half: tune
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

BANDS, TRAITS = 512, 12


class LeafTraits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Dropout(0.1),
            nn.Linear(BANDS, 1024),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(1024, 1024),
            nn.GELU(),
            nn.Linear(1024, TRAITS),
        )

    def training_step(self, batch, batch_idx):
        spectra, traits = batch
        loss = F.mse_loss(self.net(spectra), traits)
        if True:  # in each step
            self.net.eval()
            with torch.no_grad():
                error = (self.net(spectra) - traits).abs().mean()  # costs time
            self.net.train()
            self.log("error", error)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def main():
    lightning.seed_everything(3)
    spectra = torch.randn(16_000, BANDS)
    data = TensorDataset(spectra, spectra[:, :TRAITS] + 0.1 * torch.randn(16_000, TRAITS))
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    sampler = BatchSampler(RandomSampler(data), 64, drop_last=True)
    trainer.fit(LeafTraits(), DataLoader(data, sampler=sampler, batch_size=None))


if __name__ == "__main__":
    main()
