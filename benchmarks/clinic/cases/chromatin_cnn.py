"""A DeepSEA-like convolutional network predicts chromatin marks from DNA. The training AUROC is computed for each batch
because the metric is called (forward) at every step, while only its value at the end of the epoch is logged.
---
expect: PD509
fix:
  ? "        self.train_auroc(logits, marks)  # costs time"
  : "        self.train_auroc.update(logits, marks)"
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelAUROC

SEQ_LEN, N_MARKS, MOTIF = 400, 160, 10


def simulate_genome(n, seed):
    """Random DNA with planted motifs; every chromatin mark depends on two of them."""
    g = torch.Generator().manual_seed(2024)
    motifs = torch.randint(0, 4, (24, MOTIF), generator=g)
    needs = torch.stack([torch.randperm(24, generator=g)[:2] for _ in range(N_MARKS)])
    g.manual_seed(seed)
    dna = torch.randint(0, 4, (n, SEQ_LEN), generator=g)
    present = torch.rand(n, 24, generator=g) < 0.3
    for m in range(24):
        rows = present[:, m].nonzero().squeeze(1)
        start = torch.randint(0, SEQ_LEN - MOTIF, (len(rows), 1), generator=g)
        dna[rows[:, None], start + torch.arange(MOTIF)] = motifs[m]
    marks = present[:, needs].any(-1)
    flip = torch.rand(marks.shape, generator=g) < 0.05
    return dna.to(torch.uint8), (marks ^ flip).to(torch.uint8)


class ChromatinDataset(Dataset):
    def __init__(self, dna, marks):
        self.dna, self.marks = dna, marks

    def __len__(self):
        return len(self.dna)

    def __getitem__(self, i):
        return self.dna[i], self.marks[i]


class ChromatinCNN(L.LightningModule):
    def __init__(self, width=32, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv1d(4, width, 11, padding=5),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.BatchNorm1d(width),
            nn.Conv1d(width, 2 * width, 7, padding=3),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.BatchNorm1d(2 * width),
            nn.Conv1d(2 * width, 3 * width, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(4),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(12 * width, 256), nn.ReLU(), nn.Linear(256, N_MARKS))
        self.train_auroc = MultilabelAUROC(N_MARKS)
        self.val_auroc = MultilabelAUROC(N_MARKS)

    def forward(self, dna):
        onehot = F.one_hot(dna.long(), 4).transpose(1, 2).float()
        return self.head(self.features(onehot))

    def training_step(self, batch, batch_idx):
        dna, marks = batch
        marks = marks.long()
        logits = self(dna)
        loss = F.binary_cross_entropy_with_logits(logits, marks.float())
        self.train_auroc(logits, marks)  # costs time
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_auroc", self.train_auroc, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        dna, marks = batch
        marks = marks.long()
        logits = self(dna)
        self.val_auroc.update(logits, marks)
        self.log("val_loss", F.binary_cross_entropy_with_logits(logits, marks.float()))
        self.log("val_auroc", self.val_auroc, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, total_steps=int(total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(17)
    train = ChromatinDataset(*simulate_genome(4800, seed=1))
    val = ChromatinDataset(*simulate_genome(640, seed=2))
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(ChromatinCNN(), DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=128))
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
