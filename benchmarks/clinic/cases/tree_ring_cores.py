"""Two drilled cores of the same tree are found among many by a contrastive loss over their series of ring widths.
All pairs of the batch are compared by F.cosine_similarity with broadcasting, which expands both sides to a tensor of
batch x batch x width and works elementwise upon it, where a product of the two normalized matrices would do.
---
expect: PD326
fix:
  ? |2-
            alike = F.cosine_similarity(first.unsqueeze(1), second.unsqueeze(0), dim=2)  # costs time
  : |2-
            alike = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

YEARS = 96


class TreeCores(Dataset):
    """Ring widths of two cores per tree: the climate of the site, the growth of the tree and the side of the trunk."""

    def __init__(self, trees, sites=40):
        climate = torch.randn(sites, YEARS)
        site = torch.randint(0, sites, (trees,))
        sensitivity = 0.3 + 0.7 * torch.rand(trees, 1)
        years = torch.linspace(0, 1, YEARS)
        age_trend = torch.exp(-3 * torch.rand(trees, 1) * years)
        own = F.avg_pool1d(torch.randn(trees, 1, YEARS + 2), 3, 1).squeeze(1)
        growth = sensitivity * climate[site] + own
        self.first, self.second = (self.drill(growth, age_trend) for _ in range(2))

    @staticmethod
    def drill(growth, age_trend):
        widths = age_trend * torch.exp(0.4 * growth + 0.15 * torch.randn_like(growth))
        logarithm = widths.log()
        return (logarithm - logarithm.mean(1, keepdim=True)).unsqueeze(1)

    def __len__(self):
        return len(self.first)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.first[rows], self.second[rows]


class CoreMatching(L.LightningModule):
    def __init__(self, channels=24, width=96, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(
            nn.Conv1d(1, channels, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 5, padding=2, stride=2),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 5, padding=2, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(channels * YEARS // 4, width),
        )
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, series):
        return self.encoder(series)

    def contrast(self, first, second):
        """Each core should be most alike to the other core of its own tree, in both directions."""
        alike = F.cosine_similarity(first.unsqueeze(1), second.unsqueeze(0), dim=2)  # costs time
        logits = alike * self.log_scale.exp()
        own = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    def training_step(self, batch, batch_idx):
        cores = torch.cat(batch)
        first, second = self(cores).chunk(2)
        return self.contrast(first, second)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def identity(batch):
    return batch


def main():
    L.seed_everything(5)
    trees = TreeCores(9600)
    loader = DataLoader(trees, batch_size=96, shuffle=True, drop_last=True, collate_fn=identity)
    model = CoreMatching()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        first = F.normalize(model(trees.first[:1000]), dim=1)
        second = F.normalize(model(trees.second[:1000]), dim=1)
        found = ((first @ second.T).argmax(1) == torch.arange(1000)).float().mean()
    print(f"found among 1000: {found:.3f}")


if __name__ == "__main__":
    main()
