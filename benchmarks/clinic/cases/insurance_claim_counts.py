"""Trains a deep-sets model that predicts next year's claim count of insurance policies; the claims table is looked up
through an index that is neither unique nor sorted.
---
expect: [PD107, PD101]
fix: {'claims.set_index("policy")': 'claims.set_index("policy").sort_index(kind="stable")'}
half: tune
"""

import lightning
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES = [
    f"claim_{name}"
    for name in (
        "paid",
        "reserve",
        "age",
        "lag",
        "injury",
        "fault",
        "lawyer",
        "glass",
        "theft",
        "storm",
        "night",
        "repeat",
    )
]


def make_portfolio(policies=60_000, seed=11):
    rng = np.random.default_rng(seed)
    risk = rng.gamma(2.0, 0.5, policies)
    number = 4 + rng.poisson(11 * risk)
    policy = rng.permutation(np.repeat(np.arange(policies), number))  # claims arrive in order of their report date
    values = rng.standard_normal((len(policy), len(FEATURES)), dtype=np.float32)
    values[:, 0] += risk[policy]
    values[:, 4] += 0.5 * risk[policy]
    claims = pd.DataFrame(values, columns=FEATURES)
    claims["policy"] = policy
    holder = rng.standard_normal((policies, 10), dtype=np.float32)
    target = rng.poisson(risk * np.exp(0.3 * holder[:, 0])).astype(np.float32)
    return claims, holder, target


class PolicyHistories(Dataset):
    """A policy with all its earlier claims; a batch is fetched at once."""

    def __init__(self, claims, holder, target):
        self.counts = np.bincount(claims["policy"], minlength=len(target))
        self.claims = claims.set_index("policy")
        self.holder = torch.from_numpy(holder)
        self.target = torch.from_numpy(target)

    def __len__(self):
        return len(self.target)

    def __getitems__(self, policies):
        rows = self.claims.loc[policies]  # costs time
        owner = np.repeat(np.arange(len(policies)), self.counts[policies])
        return (
            torch.from_numpy(rows.to_numpy(copy=True)),
            torch.from_numpy(owner),
            self.holder[policies],
            self.target[policies],
        )


class ClaimFrequency(lightning.LightningModule):
    def __init__(self, width=160):
        super().__init__()
        self.claim = nn.Sequential(
            nn.Linear(len(FEATURES), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.policy = nn.Sequential(nn.Linear(width + 10, width), nn.ReLU(), nn.Linear(width, 1))
        self.loss = nn.PoissonNLLLoss(log_input=True)

    def forward(self, claims, owner, holder):
        encoded = self.claim(claims)
        pooled = encoded.new_zeros(len(holder), encoded.shape[1]).index_add(0, owner, encoded)
        return self.policy(torch.cat([pooled / 16, holder], dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        claims, owner, holder, target = batch
        return self.loss(self(claims, owner, holder), target)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(11)
    dataset = PolicyHistories(*make_portfolio())
    loader = DataLoader(dataset, batch_size=192, shuffle=True, drop_last=True, collate_fn=lambda batch: batch)
    trainer = lightning.Trainer(
        max_epochs=2,
        limit_train_batches=100,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ClaimFrequency(), loader)


if __name__ == "__main__":
    main()
