"""Two noisy views of each batch are pulled together; a cosine schedule steps with every batch.
---
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 128))

    def training_step(self, batch, batch_idx):
        rows = batch[0]
        first, second = (self.encoder(rows + 0.1 * torch.randn_like(rows)) for _ in range(2))
        scores = nn.functional.normalize(first, dim=1) @ nn.functional.normalize(second, dim=1).T / 0.1
        return nn.functional.cross_entropy(scores, torch.arange(len(rows)))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=400)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


data = TensorDataset(torch.rand(38400, 256))
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 384, drop_last=True), batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
