"""A network over graphs sums the messages of neighbors, a few graphs at a time, with a schedule of the rate per step.
---
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.messages = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.last = nn.Linear(32, 2)

    def training_step(self, batch, batch_idx):
        nodes, edges, classes = batch
        for layer in self.messages:
            nodes = nodes + layer(torch.zeros_like(nodes).index_add_(0, edges[1], nodes[edges[0]])).relu()
        return nn.functional.cross_entropy(self.last(nodes), classes)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


graphs = [(torch.rand(300, 32), torch.randint(300, (2, 1200)), torch.randint(2, (300,))) for _ in range(250)]
loader = DataLoader(graphs, batch_size=None, shuffle=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
