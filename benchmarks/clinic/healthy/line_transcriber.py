"""Trains an OCR model that transcribes text-line images with a convolutional encoder and a recurrent decoder under
teacher forcing.
---
half: tune
"""

import lightning
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

HEIGHT, GLYPH_WIDTH, CHARACTERS, LETTERS = 24, 8, 12, 40
START = LETTERS


class LineTranscriber(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.columns = nn.Linear(32 * HEIGHT // 4, width)
        self.places = nn.Parameter(0.02 * torch.randn(CHARACTERS * GLYPH_WIDTH // 4, width))
        self.letters = nn.Embedding(LETTERS + 1, 64)
        self.decoder = nn.GRU(64, width, batch_first=True)
        self.output = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, LETTERS))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, images, previous):
        maps = self.encoder(images.unsqueeze(1).float() / 255.0)
        columns = self.columns(maps.permute(0, 3, 1, 2).flatten(2)) + self.places
        states, _ = self.decoder(self.letters(previous))
        context = nn.functional.scaled_dot_product_attention(states, columns, columns)
        return self.output(torch.cat([states, context], dim=2))

    def training_step(self, batch, batch_idx):
        images, text = batch
        previous = nn.functional.pad(text[:, :-1], (1, 0), value=START)
        logits = self(images, previous)
        loss = self.criterion(logits.flatten(0, 1), text.flatten())
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=1.0)
        optimizer.step()
        self.log("train_loss", loss.detach(), on_step=False, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def make_lines(count, seed):
    """Text lines set in a random bitmap font with noise."""
    generator = torch.Generator().manual_seed(seed)
    font = torch.randint(0, 2, (LETTERS, HEIGHT, GLYPH_WIDTH), generator=generator, dtype=torch.uint8) * 180
    text = torch.randint(0, LETTERS, (count, CHARACTERS), generator=generator)
    images = font[text].permute(0, 2, 1, 3).reshape(count, HEIGHT, CHARACTERS * GLYPH_WIDTH)
    images = images + torch.randint(0, 60, images.shape, generator=generator, dtype=torch.uint8)
    return TensorDataset(images, text)


if __name__ == "__main__":
    lightning.seed_everything(41)
    lines = make_lines(7680, seed=12)
    sampler = BatchSampler(RandomSampler(lines), batch_size=64, drop_last=True)
    loader = DataLoader(lines, batch_size=None, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LineTranscriber(), loader)
