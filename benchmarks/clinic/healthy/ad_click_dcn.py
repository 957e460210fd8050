"""A DCN-v2 click-through model is trained on categorical and numerical features of ad impressions.
---
half: score
"""

import itertools

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torchmetrics.classification import BinaryAUROC

FIELDS = {
    "site": 300,
    "app": 200,
    "device": 60,
    "os": 12,
    "country": 50,
    "hour": 24,
    "weekday": 7,
    "slot": 16,
    "advertiser": 250,
    "creative": 400,
    "category": 30,
    "segment": 100,
}
N_DENSE = 13


class Impressions(Dataset):
    """Column tensors in memory; one item is a whole batch of rows."""

    def __init__(self, n, seed):
        world, rng = np.random.default_rng(0), np.random.default_rng(seed)
        sizes = np.array(list(FIELDS.values()))
        popularity = rng.random((n, len(sizes))) ** 2.5
        cat = (popularity * sizes).astype(np.int64)
        dense = np.log1p(rng.lognormal(1.0, 1.0, (n, N_DENSE))).astype(np.float32)
        logit = np.full(n, -1.2)
        factors = []
        for j, size in enumerate(sizes):
            logit += 0.3 * world.standard_normal(size)[cat[:, j]]
            factors.append(world.standard_normal((size, 4))[cat[:, j]])
        for a, b in ((0, 9), (1, 8), (5, 10), (4, 11)):
            logit += 0.4 * (factors[a] * factors[b]).sum(1)
        logit += 0.3 * (dense[:, 0] - dense[:, 1]) * (dense[:, 2] - 1.3)
        offsets = np.concatenate([[0], sizes.cumsum()[:-1]])
        self.cat = torch.from_numpy(cat + offsets)
        self.dense = torch.from_numpy((dense - dense.mean(0)) / dense.std(0))
        self.click = torch.from_numpy((rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32))

    def __len__(self):
        return len(self.click)

    def __getitem__(self, rows):
        return self.cat[rows], self.dense[rows], self.click[rows]


class CrossNet(nn.Module):
    """x_{l+1} = x_0 * (W x_l + b) + x_l"""

    def __init__(self, dim, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))

    def forward(self, x0):
        x = x0
        for layer in self.layers:
            x = torch.addcmul(x, x0, layer(x))
        return x


class DCN(L.LightningModule):
    def __init__(self, emb_dim=16, cross_layers=3, hidden=(512, 256, 128), lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(sum(FIELDS.values()), emb_dim)
        nn.init.normal_(self.embedding.weight, std=0.05)
        width = len(FIELDS) * emb_dim + N_DENSE
        self.cross = CrossNet(width, cross_layers)
        sizes, mlp = (width, *hidden), []
        for a, b in itertools.pairwise(sizes):
            mlp += [nn.Linear(a, b), nn.ReLU(inplace=True)]
        self.deep = nn.Sequential(*mlp)
        self.head = nn.Linear(width + hidden[-1], 1)
        self.val_auc = BinaryAUROC()

    def forward(self, cat, dense):
        x = torch.cat([self.embedding(cat).flatten(1), dense], dim=1)
        return self.head(torch.cat([self.cross(x), self.deep(x)], dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        cat, dense, click = batch
        loss = F.binary_cross_entropy_with_logits(self(cat, dense).float(), click)
        self.log("train_logloss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        cat, dense, click = batch
        logit = self(cat, dense).float()
        self.val_auc.update(logit, click.long())
        self.log("val_logloss", F.binary_cross_entropy_with_logits(logit, click))
        self.log("val_auc", self.val_auc, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, fused=True)


def make_loader(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else range(len(dataset))
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


def main():
    L.seed_everything(31)
    train, val = Impressions(240_000, seed=1), Impressions(20_000, seed=2)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(DCN(), make_loader(train, 1024, True), make_loader(val, 4096, False))
    print("val auc", float(trainer.callback_metrics["val_auc"]))


if __name__ == "__main__":
    main()
