"""Learns an embedding of product descriptions (bags of hashed words) with the batch-hard triplet loss, while a callback
watches the gradients. The mistake: the callback computes its statistics in each step, though few of them are logged.
---
expect: PD504
fix:
  ? |2
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
  : |2
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            if (trainer.global_step + 1) % trainer.log_every_n_steps:
                return
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

PRODUCTS, OFFERS, WORDS = 1200, 4, 1024


def make_products(products, seed):
    generator = torch.Generator().manual_seed(seed)
    centers = (torch.rand(products, 1, WORDS, generator=generator) < 0.03).float()
    noise = (torch.rand(products, OFFERS, WORDS, generator=generator) < 0.02).float()
    kept = (torch.rand(products, OFFERS, WORDS, generator=generator) < 0.6).float()
    return centers * kept + noise


def hardest_triplet_loss(embedded, products, margin=0.3):
    distance = (2 - 2 * embedded @ embedded.T).clamp_min(1e-6).sqrt()
    same = products[:, None] == products[None]
    positive = distance.masked_fill(~same, 0).amax(1)
    negative = distance.masked_fill(same, 4).amin(1)
    return F.softplus((positive - negative + margin) * 4).mean()


class GradientWatch(L.Callback):
    """Logs how large and how spread the gradients of each weight matrix are."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        stats = {}
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is None or parameter.ndim < 2:
                continue
            size = parameter.grad.abs().flatten()
            stats[f"grad_median/{name}"] = size.median()  # costs time
            shares = torch.histc(size.clamp_min(1e-12).log10(), bins=64, min=-12, max=2) / size.numel()  # costs time
            stats[f"grad_entropy/{name}"] = -torch.xlogy(shares, shares).sum()
        pl_module.log_dict(stats)


class ProductEncoder(L.LightningModule):
    def __init__(self, hidden=640, width=128):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WORDS, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, words):
        return F.normalize(self.layers(words), dim=1)

    def training_step(self, batch, batch_idx):
        words, products = batch
        loss = hardest_triplet_loss(self(words.flatten(0, 1)), products.repeat_interleave(OFFERS))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        words, _ = batch
        embedded = self(words)
        nearest = (embedded[:, 0] @ embedded[:, 1].T).argmax(1)
        self.log("val_recall", (nearest == torch.arange(len(nearest))).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=True)


def main():
    L.seed_everything(5)
    train = TensorDataset(make_products(PRODUCTS, 0), torch.arange(PRODUCTS))
    val = TensorDataset(make_products(200, 1), torch.arange(200))
    sampler = BatchSampler(RandomSampler(train), 24, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        callbacks=[GradientWatch()],
        logger=CSVLogger("lightning_logs", name="product_matching"),
        enable_checkpointing=False,
    )
    trainer.fit(ProductEncoder(), DataLoader(train, sampler=sampler, batch_size=None), DataLoader(val, batch_size=200))


if __name__ == "__main__":
    main()
