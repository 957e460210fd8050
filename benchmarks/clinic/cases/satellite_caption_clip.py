"""A tiny CLIP learns from pairs of satellite tiles and captions, with zero-shot accuracy as validation
metric. Each validation batch sends the prompts of all land-use classes through the text encoder again.
---
expect: [PD601, PD111, PD327, PD511]
fix:
  ? 'def validation_step(self, batch, batch_idx):'
  : |-
    def on_validation_epoch_start(self):
            self.class_embeddings = self.embed_classes()

        def validation_step(self, batch, batch_idx):
  ? 'logits = self.embed_image(images) @ self.embed_classes().T  # costs time'
  : 'logits = self.embed_image(images) @ self.class_embeddings.T'
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 40
TEMPLATES = 8
WORDS = 12
VOCAB = 1000
SIDE = 32


def make_prompts():
    """Token ids of 'an aerial photo of {}', 'a {} seen from above' ... for every class."""
    gen = torch.Generator().manual_seed(11)
    templates = torch.randint(100, VOCAB, (TEMPLATES, WORDS), generator=gen)
    prompts = templates.repeat(CLASSES, 1, 1)
    prompts = prompts.view(CLASSES, TEMPLATES, WORDS).clone()
    prompts[:, :, 4] = torch.arange(CLASSES)[:, None]
    return prompts


def make_pairs(count: int, prompts: torch.Tensor, seed: int):
    gen = torch.Generator().manual_seed(seed)
    looks = torch.randn(CLASSES, 3, SIDE // 4, SIDE // 4, generator=torch.Generator().manual_seed(12))
    label = torch.randint(0, CLASSES, (count,), generator=gen)
    images = F.interpolate(looks[label], scale_factor=4) + torch.randn(count, 3, SIDE, SIDE, generator=gen)
    captions = prompts[label, torch.randint(0, TEMPLATES, (count,), generator=gen)].clone()
    captions[:, -2:] = torch.randint(100, VOCAB, (count, 2), generator=gen)
    return images, captions, label


class TextEncoder(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(WORDS, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.encoder(self.tokens(tokens) + self.positions).mean(dim=1)


class TinyClip(L.LightningModule):
    def __init__(self, prompts, dim=96, layers=3, lr=1e-3):
        super().__init__()
        self.text = TextEncoder(dim, layers)
        self.image = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(48, dim, 3, stride=2, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.log_scale = nn.Parameter(torch.tensor(2.6))
        self.register_buffer("prompts", prompts, persistent=False)
        self.lr = lr

    def embed_image(self, images):
        return F.normalize(self.image(images), dim=-1)

    def embed_text(self, tokens):
        return F.normalize(self.text(tokens), dim=-1)

    def embed_classes(self):
        """The mean embedding of all templates per class."""
        embedded = self.embed_text(self.prompts.flatten(0, 1))
        return F.normalize(embedded.view(CLASSES, TEMPLATES, -1).mean(dim=1), dim=-1)

    def training_step(self, batch, batch_idx):
        images, captions, _ = batch
        logits = self.log_scale.exp() * self.embed_image(images) @ self.embed_text(captions).T
        target = torch.arange(len(images), device=self.device)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, _, label = batch
        logits = self.embed_image(images) @ self.embed_classes().T  # costs time
        self.log("zero_shot", (logits.argmax(dim=1) == label).float().mean(), batch_size=len(label))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(5)
    prompts = make_prompts()
    train = DataLoader(TensorDataset(*make_pairs(1920, prompts, 1)), batch_size=32, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(*make_pairs(1280, prompts, 2)), batch_size=32)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TinyClip(prompts), train, val)
