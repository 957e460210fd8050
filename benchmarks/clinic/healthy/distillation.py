"""A small network learns what a larger, frozen one says of the same batch.
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
        self.teacher = nn.Sequential(
            nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        self.teacher.requires_grad_(False)
        self.student = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            wanted = self.teacher(batch[0]).softmax(dim=1)
        loss = nn.functional.cross_entropy(self.student(batch[0]), wanted)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.student.parameters(), lr=0.1, fused=True)


data = TensorDataset(torch.rand(51200, 128))
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 512, drop_last=True), batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
