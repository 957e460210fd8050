"""Papers of a citation graph are classified from features that were propagated over the graph once, before the training
(SIGN), with a network on mini-batches of nodes.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

NODES = 20_000
CLASSES = 12
FEATURES = 96
HOPS = 3


class SignClassifier(L.LightningModule):
    def __init__(self, hidden=192, lr=1e-3):
        super().__init__()
        self.hops = nn.ModuleList(nn.Linear(FEATURES, hidden) for _ in range(HOPS + 1))
        self.body = nn.Sequential(
            nn.PReLU(),
            nn.Dropout(0.3),
            nn.Linear(hidden * (HOPS + 1), 512),
            nn.PReLU(),
            nn.Dropout(0.3),
            nn.Linear(512, CLASSES),
        )
        self.val_acc = MulticlassAccuracy(num_classes=CLASSES, average="micro")
        self.lr = lr

    def forward(self, x):
        return self.body(torch.cat([hop(x[:, i]) for i, hop in enumerate(self.hops)], dim=1))

    def training_step(self, batch, batch_idx):
        x, label = batch
        loss = F.cross_entropy(self(x), label, label_smoothing=0.05)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, label = batch
        self.val_acc.update(self(x), label)
        self.log("val_acc", self.val_acc, on_epoch=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01, fused=True)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
        return [optimizer], [scheduler]


def make_graph(seed=0, degree=8):
    """Random graph in which most edges join papers of one class, with noisy class features."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(NODES) % CLASSES
    source = torch.randint(0, NODES, (NODES * degree,), generator=generator)
    target = torch.randint(0, NODES // CLASSES, (NODES * degree,), generator=generator) * CLASSES + label[source]
    stray = torch.rand(len(source), generator=generator) < 0.3
    target = torch.where(stray, torch.randint(0, NODES, target.shape, generator=generator), target)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    x = 0.1 * centres[label] + torch.randn(NODES, FEATURES, generator=generator)
    return x, label, torch.stack([torch.cat([source, target]), torch.cat([target, source])])


def propagate(x, edges):
    """Stack of x, Ax, A^2x, ... with the symmetrically normalized adjacency A."""
    inverse_root = torch.bincount(edges[0], minlength=NODES).clamp(min=1).float().rsqrt()
    weight = inverse_root[edges[0]] * inverse_root[edges[1]]
    adjacency = torch.sparse_coo_tensor(edges, weight, (NODES, NODES)).coalesce()
    stack = [x]
    for _ in range(HOPS):
        stack.append(adjacency @ stack[-1])
    return torch.stack(stack, dim=1)


def make_loader(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(4)
    features, labels, edges = make_graph()
    stack = propagate(features, edges)
    train = make_loader(TensorDataset(stack[:18_432], labels[:18_432]), batch_size=512, shuffle=True)
    val = make_loader(TensorDataset(stack[18_432:], labels[18_432:]), batch_size=784, shuffle=False)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=8, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(SignClassifier(), train, val)
