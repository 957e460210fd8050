"""A patch transformer is fine-tuned for landmark retrieval with a cosine classifier; validation looks up each query's
nearest image of a gallery.
The gallery is embedded again for every validation batch, although the weights do not change during validation.
---
expect: PD601
half: tune
fix:
  "    def validation_step(self, batch, batch_idx):": |2-
        def on_validation_epoch_start(self):
            self.gallery_vectors = self.embed(self.gallery_images)

        def validation_step(self, batch, batch_idx):
  "        gallery = self.embed(self.gallery_images)  # costs time": "        gallery = self.gallery_vectors"
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_LANDMARKS = 40


def make_photos(n, seed):
    """Photos of landmarks: a fixed pattern each, shifted, shaded and noisy."""
    patterns = torch.randn(N_LANDMARKS, 3, 8, 8, generator=torch.Generator().manual_seed(99))
    patterns = F.interpolate(patterns, size=40, mode="bilinear")
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % N_LANDMARKS
    shift = torch.randint(0, 9, (n, 2), generator=g).tolist()
    images = torch.stack(
        [patterns[k, :, i : i + 32, j : j + 32] for k, (i, j) in zip(labels.tolist(), shift, strict=False)]
    )
    light = 0.5 + torch.rand(n, 1, 1, 1, generator=g)
    return images * light + 0.8 * torch.randn(images.shape, generator=g), labels


class PatchTransformer(nn.Module):
    def __init__(self, dim=64, depth=2):
        super().__init__()
        self.patches = nn.Linear(3 * 4 * 4, dim)
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, images):
        tokens = F.unfold(images, 4, stride=4).transpose(1, 2)
        return self.encoder(self.patches(tokens) + self.position).mean(1)


class LandmarkRetrieval(L.LightningModule):
    def __init__(self, gallery_images, gallery_labels, dim=64):
        super().__init__()
        self.backbone = PatchTransformer(dim)
        self.project = nn.Linear(dim, 64)
        self.centres = nn.Parameter(torch.randn(N_LANDMARKS, 64))
        self.register_buffer("gallery_images", gallery_images, persistent=False)
        self.register_buffer("gallery_labels", gallery_labels, persistent=False)

    def embed(self, images):
        return F.normalize(self.project(self.backbone(images)), dim=-1)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        cosine = self.embed(images) @ F.normalize(self.centres, dim=-1).T
        margin = 0.2 * F.one_hot(labels, N_LANDMARKS)
        loss = F.cross_entropy(16 * (cosine - margin), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        gallery = self.embed(self.gallery_images)  # costs time
        nearest = (self.embed(images) @ gallery.T).argmax(dim=1)
        recall = (self.gallery_labels[nearest] == labels).float().mean()
        self.log("val_recall_at_1", recall, on_epoch=True, prog_bar=True)

    def configure_optimizers(self):
        heads = [*self.project.parameters(), self.centres]
        return torch.optim.AdamW(
            [{"params": self.backbone.parameters(), "lr": 3e-4}, {"params": heads, "lr": 3e-3}],
            weight_decay=0.01,
        )


if __name__ == "__main__":
    L.seed_everything(6)
    train = DataLoader(TensorDataset(*make_photos(960, 0)), batch_size=18, shuffle=True, drop_last=True)
    queries = DataLoader(TensorDataset(*make_photos(384, 1)), batch_size=32)
    model = LandmarkRetrieval(*make_photos(400, 2))
    trainer = L.Trainer(accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False)
    trainer.fit(model, train, queries)
