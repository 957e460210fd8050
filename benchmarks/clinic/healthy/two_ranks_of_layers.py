"""DDP on two ranks: wide layers on rows fetched a batch at a time, the loss reduced at the end of an epoch.
---
half: score
own_process: true
cores: 2
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 1))

    def training_step(self, batch, batch_idx):
        loss = self.layers(batch[0]).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def train_dataloader(self):
        data = TensorDataset(torch.rand(2048 * 60, 256))
        own = DistributedSampler(data, num_replicas=self.trainer.world_size, rank=self.trainer.global_rank)
        return DataLoader(data, sampler=BatchSampler(own, 1024, drop_last=True), batch_size=None)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, fused=True)


trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    precision="bf16-mixed",
    enable_checkpointing=False,
    enable_progress_bar=False,
    use_distributed_sampler=False,
    strategy="ddp",
    devices=2,
)
trainer.fit(Net())
