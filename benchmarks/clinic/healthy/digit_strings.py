"""Recognition of strings of handwritten digits with a convolutional encoder, a bidirectional GRU and the CTC loss; one
checkpoint per epoch and a CSV log.
---
half: score
"""

import tempfile

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

STRINGS, MAX_DIGITS, DIGIT_WIDTH, HEIGHT, BATCH = 2560, 6, 16, 16, 32
BLANK = 10


def make_strings() -> TensorDataset:
    """Smoothed random glyphs, one per digit, drawn side by side with jitter in ink; short strings end in white."""
    generator = torch.Generator().manual_seed(101)
    coarse = (torch.rand(10, 1, 5, 5, generator=generator) < 0.5).float()
    glyphs = F.interpolate(coarse, size=(HEIGHT, DIGIT_WIDTH - 4), mode="bilinear", align_corners=False)
    glyphs = F.pad(glyphs.squeeze(1), (2, 2))
    digits = torch.randint(0, 10, (STRINGS, MAX_DIGITS), generator=generator)
    lengths = torch.randint(3, MAX_DIGITS + 1, (STRINGS,), generator=generator)
    ink = torch.rand(STRINGS, MAX_DIGITS, 1, 1, generator=generator) * 0.5 + 0.5
    present = (torch.arange(MAX_DIGITS) < lengths.unsqueeze(1)).view(STRINGS, MAX_DIGITS, 1, 1)
    images = (glyphs[digits] * ink * present).permute(0, 2, 1, 3).reshape(STRINGS, 1, HEIGHT, -1)
    images += torch.randn(images.shape, generator=generator) * 0.1
    return TensorDataset(images, digits, lengths)


class StringReader(LightningModule):
    """Columns of a small CNN, read by a GRU in both directions."""

    def __init__(self, width: int = 24, hidden: int = 64, lr: float = 3e-3) -> None:
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.reader = nn.GRU(2 * width * HEIGHT // 4, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, BLANK + 1)

    def forward(self, images: Tensor) -> Tensor:
        columns = self.encoder(images).flatten(1, 2).transpose(1, 2)
        return self.head(self.reader(columns)[0])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, digits, lengths = batch
        log_probabilities = self(images).log_softmax(-1).transpose(0, 1)
        steps = torch.full_like(lengths, log_probabilities.shape[0])
        loss = F.ctc_loss(log_probabilities, digits, steps, lengths, blank=BLANK)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    seed_everything(101)
    folder = tempfile.mkdtemp(prefix="digit_strings_")
    dataset = make_strings()
    loader = DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=True), batch_size=None)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=CSVLogger(folder),
        log_every_n_steps=50,
        callbacks=[ModelCheckpoint(dirpath=folder, save_weights_only=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(StringReader(), loader)
    print(f"loss {trainer.callback_metrics['train_loss']:.3f}")


if __name__ == "__main__":
    main()
