"""A multi-task network predicts eight toxicity assays from molecular fingerprints, with missing labels. The
backward pass is run once per task through the shared trunk, instead of once for the sum of the tasks' losses.
---
expect: PD331
half: score
fix:
  ? |2-
                self.manual_backward(loss, retain_graph=True)  # costs time
                losses.append(loss.detach())
            self.clip_gradients(optimizer, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
            optimizer.step()
            self.log("train_loss", torch.stack(losses).sum(), prog_bar=True)
  : |2-
                losses.append(loss)
            total = torch.stack(losses).sum()
            self.manual_backward(total)
            self.clip_gradients(optimizer, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
            optimizer.step()
            self.log("train_loss", total.detach(), prog_bar=True)
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BITS = 1024
ASSAYS = ["nr_ar", "nr_ahr", "nr_er", "nr_ppar", "sr_are", "sr_atad5", "sr_hse", "sr_p53"]


class Fingerprints(Dataset):
    """Morgan-like fingerprints as bytes; labels are 0, 1 or -1 (not measured)."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.bits = (torch.rand(count, BITS, generator=gen) < 0.06).to(torch.uint8)
        rule = torch.randn(BITS, len(ASSAYS), generator=torch.Generator().manual_seed(3))
        labels = (self.bits.float() @ rule > 5.0).long()
        missing = torch.rand(labels.shape, generator=gen) < 0.3
        self.labels = labels.masked_fill(missing, -1)

    def __len__(self):
        return len(self.bits)

    def __getitems__(self, indices):
        return self.bits[indices].float(), self.labels[indices]


class ToxNet(L.LightningModule):
    def __init__(self, width=256, lr=5e-4):
        super().__init__()
        self.automatic_optimization = False
        self.lr = lr
        self.trunk = nn.Sequential(
            nn.Linear(BITS, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, 128),
            nn.ReLU(),
        )
        self.heads = nn.ModuleDict({name: nn.Linear(128, 1) for name in ASSAYS})

    def forward(self, bits):
        shared = self.trunk(bits)
        return {name: head(shared).squeeze(-1) for name, head in self.heads.items()}

    @staticmethod
    def task_loss(logits, target):
        known = (target >= 0).float()
        loss = F.binary_cross_entropy_with_logits(logits, target.clamp(min=0).float(), reduction="none")
        return (loss * known).sum() / known.sum().clamp(min=1)

    def training_step(self, batch, batch_idx):
        bits, labels = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        outputs = self(bits)
        losses = []
        for column, name in enumerate(ASSAYS):
            loss = self.task_loss(outputs[name], labels[:, column])
            self.manual_backward(loss, retain_graph=True)  # costs time
            losses.append(loss.detach())
        self.clip_gradients(optimizer, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        optimizer.step()
        self.log("train_loss", torch.stack(losses).sum(), prog_bar=True)

    def validation_step(self, batch, batch_idx):
        bits, labels = batch
        outputs = self(bits)
        losses = torch.stack([self.task_loss(outputs[name], labels[:, i]) for i, name in enumerate(ASSAYS)])
        self.log("val_loss", losses.sum(), batch_size=len(bits))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(5)
    train_loader = DataLoader(Fingerprints(9_600, 1), batch_size=192, shuffle=True, collate_fn=lambda batch: batch)
    val_loader = DataLoader(Fingerprints(2_048, 2), batch_size=512, collate_fn=lambda batch: batch)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, log_every_n_steps=20)
    trainer.fit(ToxNet(), train_loader, val_loader)
    print("validation loss", float(trainer.callback_metrics["val_loss"]))
