"""A small convolutional student learns the stored image embeddings of a large teacher; validation measures retrieval.
Each validation batch makes the student embed the whole gallery again, although its weights have not changed.
---
expect: PD601
fix:
  ? |2
        def validation_step(self, batch, batch_idx):
            images, labels = batch
            gallery = F.normalize(self(self.gallery_images), dim=1)  # costs time
            nearest = (F.normalize(self(images), dim=1) @ gallery.T).argmax(1)
  : |2
        def on_validation_epoch_start(self):
            self.gallery = F.normalize(self(self.gallery_images), dim=1)

        def validation_step(self, batch, batch_idx):
            images, labels = batch
            nearest = (F.normalize(self(images), dim=1) @ self.gallery.T).argmax(1)
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

SIZE = 32
NUM_ITEMS = 40
EMBEDDING = 64


def photograph(count, seed):
    """Images of shop items (a color pattern each, under noise), their labels and the teacher's embeddings."""
    fixed = torch.Generator().manual_seed(0)
    patterns = F.interpolate(torch.randn(NUM_ITEMS, 3, 6, 6, generator=fixed), size=(SIZE, SIZE), mode="bilinear")
    anchors = torch.randn(NUM_ITEMS, EMBEDDING, generator=fixed)
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, NUM_ITEMS, (count,), generator=gen)
    light = 0.6 + 0.8 * torch.rand(count, 1, 1, 1, generator=gen)
    images = light * patterns[labels] + 0.5 * torch.randn(count, 3, SIZE, SIZE, generator=gen)
    embeddings = anchors[labels] + 0.1 * torch.randn(count, EMBEDDING, generator=gen)
    return images, labels, F.normalize(embeddings, dim=1)


class Student(L.LightningModule):
    def __init__(self, gallery_images, gallery_labels):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=2, padding=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 96, 3, stride=2, padding=1),
            nn.BatchNorm2d(96),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(96 * 16, EMBEDDING),
        )
        self.register_buffer("gallery_images", gallery_images, persistent=False)
        self.register_buffer("gallery_labels", gallery_labels, persistent=False)

    def forward(self, images):
        return self.net(images.contiguous(memory_format=torch.channels_last))

    def training_step(self, batch, batch_idx):
        images, target = batch
        loss = 1 - F.cosine_similarity(self(images), target).mean()
        self.log("distillation_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        gallery = F.normalize(self(self.gallery_images), dim=1)  # costs time
        nearest = (F.normalize(self(images), dim=1) @ gallery.T).argmax(1)
        recall = (self.gallery_labels[nearest] == labels).float().mean()
        self.log("val_recall_at_1", recall, batch_size=len(images))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


def batches(data, sampler, batch_size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), batch_size, drop_last=False), batch_size=None)


def main():
    L.seed_everything(61)
    images, _, embeddings = photograph(1600, seed=1)
    gallery_images, gallery_labels, _ = photograph(320, seed=2)
    query_images, query_labels, _ = photograph(320, seed=3)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(
        Student(gallery_images, gallery_labels).to(memory_format=torch.channels_last),
        batches(TensorDataset(images, embeddings), RandomSampler, 32),
        batches(TensorDataset(query_images, query_labels), SequentialSampler, 32),
    )


if __name__ == "__main__":
    main()
