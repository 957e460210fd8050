"""A table that lies in memory is fetched row by row and each batch of 2048 rows is collated from single rows.
---
expect:
- PD110
- PD108
- PD107
also:
  PD101: samples are cheap to fetch by index
half: tune
fix:
  'DataLoader, Dataset': 'BatchSampler, DataLoader, Dataset, RandomSampler'
  'batch_size=2048, shuffle=True': 'batch_size=None, sampler=BatchSampler(RandomSampler(table), 2048, False)'
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CustomerTable(Dataset):
    def __init__(self, n_rows):
        generator = torch.Generator().manual_seed(0)
        self.numbers = torch.randn(n_rows, 24, generator=generator)
        self.categories = torch.randint(0, 50, (n_rows, 4), generator=generator)
        score = self.numbers[:, 0] - self.numbers[:, 1] * self.numbers[:, 2] + 0.05 * self.categories[:, 0]
        self.churned = (score > 1).float()

    def __len__(self):
        return len(self.churned)

    def __getitem__(self, index):
        return {
            "numbers": self.numbers[index],
            "categories": self.categories[index],
            "churned": self.churned[index],
        }


class ChurnModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(50, 8) for _ in range(4))
        self.net = nn.Sequential(
            nn.Linear(24 + 4 * 8, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, batch):
        columns = [embed(batch["categories"][:, i]) for i, embed in enumerate(self.embeddings)]
        return self.net(torch.cat([batch["numbers"], *columns], dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        loss = F.binary_cross_entropy_with_logits(self(batch), batch["churned"])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


L.seed_everything(1)
table = CustomerTable(160_000)
loader = DataLoader(table, batch_size=2048, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(ChurnModel(), loader)
