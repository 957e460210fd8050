"""A network reads number plates character by character; in validation the greedy decoding never stops before the
longest possible text.
---
expect: PD601
fix:
  "ended |= token.eq(EOS)": |-
    ended |= token.eq(EOS)
                if ended.all():
                    break
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

CHARACTERS = 20
PAD, BOS, EOS = 0, 1, 2
TOKENS = CHARACTERS + 3
MAX_LENGTH = 64
HEIGHT, CELL, SLOTS = 16, 8, 8


def make_plates(n, seed):
    """Noisy strips of glyphs, and the texts as padded tokens with start and end marks."""
    g = torch.Generator().manual_seed(seed)
    glyphs = torch.randn(CHARACTERS + 1, HEIGHT, CELL, generator=torch.Generator().manual_seed(0))
    glyphs[CHARACTERS] = 0.0
    length = torch.randint(4, SLOTS + 1, (n, 1), generator=g)
    text = torch.randint(0, CHARACTERS, (n, SLOTS), generator=g)
    slot = torch.arange(SLOTS)
    drawn = torch.where(slot < length, text, CHARACTERS)
    images = glyphs[drawn].transpose(1, 2).reshape(n, 1, HEIGHT, SLOTS * CELL)
    images = images + 0.4 * torch.randn(images.shape, generator=g)
    tokens = torch.full((n, SLOTS + 2), PAD)
    tokens[:, 0] = BOS
    tokens[:, 1:-1] = torch.where(slot < length, text + 3, PAD)
    tokens.scatter_(1, length + 1, EOS)
    return TensorDataset(images, tokens)


class PlateReader(lightning.LightningModule):
    def __init__(self, hidden=128):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (HEIGHT // 4) * (SLOTS * CELL // 4), hidden),
            nn.Tanh(),
        )
        self.embedding = nn.Embedding(TOKENS, 32)
        self.decoder = nn.GRU(32, hidden, batch_first=True)
        self.output = nn.Linear(hidden, TOKENS)

    def training_step(self, batch, batch_idx):
        images, tokens = batch
        state = self.encoder(images)[None]
        hidden, _ = self.decoder(self.embedding(tokens[:, :-1]), state)
        return F.cross_entropy(self.output(hidden).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)

    def read(self, images):
        """Greedy decoding; what follows the end mark is padding."""
        state = self.encoder(images)[None]
        token = torch.full((len(images),), BOS)
        ended = torch.zeros(len(images), dtype=torch.bool)
        text = torch.full((len(images), MAX_LENGTH), PAD)
        for position in range(MAX_LENGTH):  # costs time
            hidden, state = self.decoder(self.embedding(token[:, None]), state)  # costs time
            token = self.output(hidden[:, 0]).argmax(dim=1).masked_fill(ended, PAD)
            text[:, position] = token
            ended |= token.eq(EOS)
        return text

    def validation_step(self, batch, batch_idx):
        images, tokens = batch
        text = self.read(images)
        target = F.pad(tokens[:, 1:], (0, MAX_LENGTH - SLOTS - 1), value=PAD)
        self.log("val_exact", (text == target).all(dim=1).float().mean(), batch_size=len(images))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3, fused=True)


def loader(dataset, batch_size, shuffle):
    order = RandomSampler(dataset) if shuffle else range(len(dataset))
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)


def main():
    lightning.seed_everything(9)
    train, val = make_plates(6_400, seed=1), make_plates(4_096, seed=2)
    model = PlateReader()
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(train, 64, shuffle=True), loader(val, 256, shuffle=False))
    print(f"plates read without error: {trainer.callback_metrics['val_exact']:.3f}")


if __name__ == "__main__":
    main()
