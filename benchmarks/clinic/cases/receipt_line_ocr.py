"""OCR of receipt lines with a small CRNN and CTC loss; most lines are short (prices, dates), some are long.
Batches are drawn at random, so nearly every one is padded to the width of a long line.
---
expect: PD116
fix:
  ? |-
    class TextLines(Dataset):
  : |-
    class WidthBuckets(Sampler):
        def __init__(self, widths, batch_size):
            self.widths, self.batch_size = widths, batch_size

        def __len__(self):
            return len(self.widths) // self.batch_size

        def __iter__(self):
            jitter = 1 + 0.1 * torch.rand(len(self.widths))
            order = (self.widths * jitter).argsort()[: len(self) * self.batch_size]
            batches = order.view(-1, self.batch_size)
            yield from batches[torch.randperm(len(batches))].tolist()


    class TextLines(Dataset):
  ? from torch.utils.data import DataLoader, Dataset
  : from torch.utils.data import DataLoader, Dataset, Sampler
  ? DataLoader(lines, batch_size=16, shuffle=True, drop_last=True, collate_fn=pad_lines)
  : DataLoader(lines, batch_sampler=WidthBuckets(lines.widths, 16), collate_fn=pad_lines)
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

ALPHABET, GLYPH_WIDTH, HEIGHT = 38, 8, 16


class TextLines(Dataset):
    """Lines of random glyphs with a little noise, rendered once."""

    def __init__(self, count):
        glyphs = F.avg_pool2d(torch.rand(1, ALPHABET + 1, HEIGHT + 2, GLYPH_WIDTH + 2), 3, stride=1)[0]
        glyphs = (glyphs > 0.5).float()
        lengths = torch.where(torch.rand(count) < 0.8, torch.randint(4, 14, (count,)), torch.randint(28, 48, (count,)))
        self.widths = lengths * GLYPH_WIDTH
        self.texts = [torch.randint(1, ALPHABET + 1, (length,)) for length in lengths.tolist()]
        self.images = []
        for text in self.texts:
            image = glyphs[text].permute(0, 2, 1).flatten(0, 1)
            self.images.append(image + 0.2 * torch.randn_like(image))

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.images[index], self.texts[index]


def pad_lines(samples):
    """Images are kept as (width, height) so that they can be padded like sequences."""
    images, texts = zip(*samples, strict=True)
    widths = torch.tensor([len(image) for image in images])
    lengths = torch.tensor([len(text) for text in texts])
    return pad_sequence(images, batch_first=True), widths, torch.cat(texts), lengths


class LineReader(L.LightningModule):
    def __init__(self, hidden=64):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d((1, 4)),
        )
        self.context = nn.LSTM(32 * 2, hidden, bidirectional=True, batch_first=True)
        self.classify = nn.Linear(2 * hidden, ALPHABET + 1)

    def forward(self, images):
        maps = self.features(images.unsqueeze(1))
        columns = maps.permute(0, 2, 1, 3).flatten(2)
        context, _ = self.context(columns)
        return self.classify(context).log_softmax(2)

    def training_step(self, batch, batch_idx):
        images, widths, texts, lengths = batch
        log_probs = self(images).transpose(0, 1)
        loss = F.ctc_loss(log_probs, texts, widths // 2, lengths, zero_infinity=True)
        self.log("train_ctc", loss, on_step=False, on_epoch=True, batch_size=len(images))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(5)
    lines = TextLines(1120)
    loader = DataLoader(lines, batch_size=16, shuffle=True, drop_last=True, collate_fn=pad_lines)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        gradient_clip_val=5.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LineReader(), loader)
