"""An embedding of product descriptors is trained with a normalized-softmax loss and validated by retrieval (recall at 1
and 10). The mistake: the retrieval gallery is embedded in every validation batch.
---
expect: PD601
fix:
  ? |2
        def validation_step(self, batch, batch_idx):
            query, label = batch
            gallery = self(self.gallery_x)  # costs time
  : |2
        def on_validation_epoch_start(self):
            self.gallery_emb = self(self.gallery_x)

        def validation_step(self, batch, batch_idx):
            query, label = batch
            gallery = self.gallery_emb
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

CLASSES = 300
FEATURES = 256


class ProductEmbedding(L.LightningModule):
    def __init__(self, gallery_x, gallery_label, dim=64, hidden=512, lr=2e-3, scale=16.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, dim),
        )
        self.proxies = nn.Parameter(torch.randn(CLASSES, dim))
        self.register_buffer("gallery_x", gallery_x, persistent=False)
        self.register_buffer("gallery_label", gallery_label, persistent=False)
        self.lr = lr
        self.scale = scale

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)

    def training_step(self, batch, batch_idx):
        x, label = batch
        cosine = self(x) @ F.normalize(self.proxies, dim=-1).T
        loss = F.cross_entropy(self.scale * cosine, label)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        query, label = batch
        gallery = self(self.gallery_x)  # costs time
        similarity = self(query) @ gallery.T
        nearest = similarity.topk(10, dim=-1).indices
        hits = self.gallery_label[nearest] == label[:, None]
        self.log("recall_at_1", hits[:, 0].float().mean(), batch_size=len(label))
        self.log("recall_at_10", hits.any(dim=1).float().mean(), batch_size=len(label))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, nesterov=True)


def make_products(n, centres, seed):
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=generator)
    return centres[label] + 1.5 * torch.randn(n, FEATURES, generator=generator), label


def make_loader(x, label, batch_size, shuffle):
    dataset = TensorDataset(x, label)
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(2)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    train = make_loader(*make_products(24_576, centres, seed=1), batch_size=384, shuffle=True)
    queries = make_loader(*make_products(1_600, centres, seed=2), batch_size=100, shuffle=False)
    model = ProductEmbedding(*make_products(6_000, centres, seed=3))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, train, queries)
