"""In each step the ranking metrics are computed over every prediction of the epoch so far.
---
expect:
- PD509
- PD605
half: score
fix:
  'self.log_dict(self.metrics.compute())  # costs time': 'pass'
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

N_FIELDS = 10
N_VALUES = 1_000


def make_clicks(n):
    generator = torch.Generator().manual_seed(0)
    fields = torch.randint(0, N_VALUES, (n, N_FIELDS), generator=generator)
    appeal = torch.randn(N_FIELDS, N_VALUES, generator=generator)
    logit = sum(appeal[i, fields[:, i]] for i in range(N_FIELDS)) - 2
    return fields, (torch.rand(n, generator=generator) < logit.sigmoid()).long()


class ClickModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_FIELDS * N_VALUES, 8)
        self.register_buffer("offsets", torch.arange(N_FIELDS) * N_VALUES)
        self.net = nn.Sequential(nn.Linear(N_FIELDS * 8, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, 1)
        self.metrics = MetricCollection({"auroc": BinaryAUROC(), "ap": BinaryAveragePrecision()})

    def training_step(self, batch, batch_idx):
        fields, clicked = batch
        x = self.embedding(fields + self.offsets).flatten(1)
        logits = self.head(self.net(x)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, clicked.float())
        self.log("train_loss", loss)
        self.metrics.update(logits.detach().sigmoid(), clicked)
        self.log_dict(self.metrics.compute())  # costs time
        return loss

    def on_train_epoch_end(self):
        self.log_dict({f"epoch_{name}": value for name, value in self.metrics.compute().items()})
        self.metrics.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


L.seed_everything(1)
clicks = TensorDataset(*make_clicks(102_400))
loader = DataLoader(clicks, batch_size=None, sampler=BatchSampler(RandomSampler(clicks), 1024, drop_last=False))
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(ClickModel(), loader)
