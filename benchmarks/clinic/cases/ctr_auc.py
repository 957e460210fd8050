"""Click-through-rate model (embeddings and an MLP on ad impressions); the running AUROC is computed again at every
training step over all predictions of the epoch so far.
---
expect: PD509
half: score
fix:
  ? |-
    self.auroc.update(torch.sigmoid(score.detach()), clicked)
            self.log("train_auc", self.auroc.compute())  # costs time
  : |-
    self.auroc.update(torch.sigmoid(score.detach()), clicked)
  ? "self.auroc.reset()"
  : |-
    self.log("train_auc", self.auroc.compute())
            self.auroc.reset()
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics.classification import BinaryAUROC

CARDINALITIES = [2000, 500, 300, 64, 24, 7, 50, 12]
N_DENSE = 6


def make_impressions(n=51_200):
    gen = torch.Generator().manual_seed(21)
    categories = torch.stack([torch.randint(0, c, (n,), generator=gen) for c in CARDINALITIES], dim=1)
    dense = torch.randn(n, N_DENSE, generator=gen)
    effect = torch.randn(CARDINALITIES[0], generator=gen)
    logit = effect[categories[:, 0]] + dense[:, 0] * (categories[:, 4] / 12 - 1) - 1.0
    clicked = torch.bernoulli(torch.sigmoid(logit), generator=gen).long()
    return TensorDataset(categories, dense, clicked)


class ClickModel(LightningModule):
    def __init__(self, dim=8):
        super().__init__()
        offsets = torch.tensor([0, *CARDINALITIES[:-1]]).cumsum(0)
        self.register_buffer("offsets", offsets)
        self.embedding = nn.Embedding(sum(CARDINALITIES), dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim * len(CARDINALITIES) + N_DENSE, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )
        self.auroc = BinaryAUROC(validate_args=False)

    def forward(self, categories, dense):
        embedded = self.embedding(categories + self.offsets).flatten(1)
        return self.mlp(torch.cat([embedded, dense], dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        categories, dense, clicked = batch
        score = self(categories, dense)
        loss = F.binary_cross_entropy_with_logits(score, clicked.float())
        self.log("train_loss", loss)
        self.auroc.update(torch.sigmoid(score.detach()), clicked)
        self.log("train_auc", self.auroc.compute())  # costs time
        return loss

    def on_train_epoch_end(self):
        self.auroc.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    seed_everything(4)
    data = make_impressions()
    batches = BatchSampler(RandomSampler(data), batch_size=256, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    trainer = Trainer(
        accelerator="cpu", max_epochs=5, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(ClickModel(), loader)


if __name__ == "__main__":
    main()
