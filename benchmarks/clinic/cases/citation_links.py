"""Predicts missing citations between papers with a graph convolutional encoder and a dot-product decoder on one graph.
The mistake: in validation, the whole graph is encoded again for each batch of candidate citations.
---
expect: PD601
fix:
  ? |2
        def validation_step(self, batch, batch_idx):
            papers = self.encode()
            pairs, linked = batch
            scores = self.decode(papers, pairs)
  : |2
        def on_validation_epoch_start(self):
            self.papers = self.encode()

        def validation_step(self, batch, batch_idx):
            pairs, linked = batch
            scores = self.decode(self.papers, pairs)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import BinaryAUROC

PAPERS, FEATURES, GROUPS = 3000, 192, 12


def make_graph(links, seed=0):
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(0, GROUPS, (PAPERS,), generator=generator)
    features = torch.randn(PAPERS, FEATURES, generator=generator)
    features[:, :GROUPS] += 2 * F.one_hot(group, GROUPS)
    order = torch.argsort(group)
    source = torch.randint(0, PAPERS, (links,), generator=generator)
    target = (source + torch.randint(1, 60, (links,), generator=generator)) % PAPERS
    return features, torch.stack([order[source], order[target]], 1)


def normalized_adjacency(links):
    both = torch.cat([links, links.flip(1), torch.arange(PAPERS).unsqueeze(1).repeat(1, 2)])
    both = torch.unique(both, dim=0)
    degree = torch.bincount(both[:, 0], minlength=PAPERS).float()
    values = (degree[both[:, 0]] * degree[both[:, 1]]).rsqrt()
    return torch.sparse_coo_tensor(both.T, values, (PAPERS, PAPERS)).to_sparse_csr()


def candidates(links, seed):
    generator = torch.Generator().manual_seed(seed)
    unlinked = torch.randint(0, PAPERS, links.shape, generator=generator)
    linked = torch.cat([torch.ones(len(links)), torch.zeros(len(unlinked))])
    return TensorDataset(torch.cat([links, unlinked]), linked)


class LinkPredictor(L.LightningModule):
    def __init__(self, features, adjacency, hidden=128, width=64):
        super().__init__()
        self.features, self.adjacency = features, adjacency
        self.first, self.second = nn.Linear(FEATURES, hidden), nn.Linear(hidden, width)
        self.auroc = BinaryAUROC()

    def encode(self):
        features = self.features * F.dropout(torch.ones(PAPERS, 1), 0.1, self.training)
        hidden = torch.sparse.mm(self.adjacency, self.first(features)).relu()
        return torch.sparse.mm(self.adjacency, self.second(hidden))

    def decode(self, papers, pairs):
        return (papers[pairs[:, 0]] * papers[pairs[:, 1]]).sum(1)

    def training_step(self, batch, batch_idx):
        pairs, linked = batch
        loss = F.binary_cross_entropy_with_logits(self.decode(self.encode(), pairs), linked)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        papers = self.encode()
        pairs, linked = batch
        scores = self.decode(papers, pairs)
        self.auroc.update(scores.sigmoid(), linked.int())
        self.log("val_loss", F.binary_cross_entropy_with_logits(scores, linked), batch_size=len(linked))
        self.log("val_auroc", self.auroc, batch_size=len(linked), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3, fused=True)


def main():
    L.seed_everything(17)
    features, links = make_graph(44_000)
    train, val = links[:32_000], links[32_000:]
    train_set, val_set = candidates(train, 1), candidates(val, 2)
    train_batches = BatchSampler(RandomSampler(train_set), 1600, drop_last=True)
    val_batches = BatchSampler(SequentialSampler(val_set), 160, drop_last=False)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, num_sanity_val_steps=0, enable_checkpointing=False)
    model = LinkPredictor(features, normalized_adjacency(train))
    trainer.fit(
        model,
        DataLoader(train_set, sampler=train_batches, batch_size=None),
        DataLoader(val_set, sampler=val_batches, batch_size=None),
    )


if __name__ == "__main__":
    main()
