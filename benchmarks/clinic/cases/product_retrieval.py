"""An encoder of product attributes is trained with a contrastive loss so that views of one product lie close together.
Validation ranks the whole gallery for every query by a full sort, although only the ten best hits are used.
---
expect: PD601
half: tune
fix:
  ? "            nearest = similarity.argsort(dim=1, descending=True)[:, :10]  # costs time"
  : "            nearest = similarity.topk(10, dim=1).indices"
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

ATTRIBUTES = 192
GALLERY = 5_400


class ProductViews(Dataset):
    """Pairs of noisy views (two shops' descriptions) of products, which are points near a nonlinear surface."""

    def __init__(self, count, seed, noise=0.9):
        gen = torch.Generator().manual_seed(seed)
        mixing = torch.randn(24, ATTRIBUTES, generator=torch.Generator().manual_seed(17)) / 5
        self.products = torch.tanh(torch.randn(count, 24, generator=gen) @ mixing)
        self.noise = noise

    def __len__(self):
        return len(self.products)

    def __getitems__(self, indices):
        clean = self.products[indices]
        first = clean + self.noise * torch.randn_like(clean)
        second = clean + self.noise * torch.randn_like(clean)
        return torch.as_tensor(indices), first, second


def keep(batch):
    return batch


class Retrieval(L.LightningModule):
    def __init__(self, width=256, dim=64, temperature=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Linear(ATTRIBUTES, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, dim),
        )
        self.found = []

    def forward(self, views):
        return F.normalize(self.encoder(views), dim=1)

    def training_step(self, batch, batch_idx):
        products, first, second = batch
        logits = self(first) @ self(second).T / self.hparams.temperature
        target = torch.arange(len(products), device=self.device)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        products, first, second = batch
        self.found.append((products, self(first), self(second)))

    def on_validation_epoch_end(self):
        products, queries, gallery = (torch.cat(part) for part in zip(*self.found, strict=True))
        self.found.clear()
        at_one = at_ten = 0
        for start in range(0, len(queries), 500):
            similarity = queries[start : start + 500] @ gallery.T
            nearest = similarity.argsort(dim=1, descending=True)[:, :10]  # costs time
            hits = products[nearest] == products[start : start + 500, None]
            at_one += hits[:, 0].sum()
            at_ten += hits.any(dim=1).sum()
        self.log_dict({"recall@1": at_one / len(queries), "recall@10": at_ten / len(queries)}, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


if __name__ == "__main__":
    L.seed_everything(4)
    train_loader = DataLoader(ProductViews(20_480, 1), batch_size=512, shuffle=True, collate_fn=keep)
    val_loader = DataLoader(ProductViews(GALLERY, 2), batch_size=900, collate_fn=keep)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, log_every_n_steps=20)
    trainer.fit(Retrieval(), train_loader, val_loader)
    print("recall@10", float(trainer.callback_metrics["recall@10"]))
