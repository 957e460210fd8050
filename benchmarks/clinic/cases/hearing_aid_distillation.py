"""Distills a wide spectrogram classifier of spoken keywords into a small one for a hearing aid, on synthetic mel
spectrograms. The teacher is only set to eval mode, so its activations are recorded and the backward pass computes
gradients for all its weights, which no optimizer uses; call the teacher under torch.no_grad().
---
expect: PD323
fix:
  ? |2-
            teacher_logits = self.teacher(clips)  # costs time
  : |2-
            with torch.no_grad():
                teacher_logits = self.teacher(clips)
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

MELS = 40
FRAMES = 64
KEYWORDS = 12


class KeywordSpectrograms(Dataset):
    """Each keyword is a pattern of three formant tracks; noise and a random shift in time make it hard."""

    def __init__(self, n_clips, seed):
        gen = torch.Generator().manual_seed(seed)
        patterns = torch.Generator().manual_seed(99)
        time = torch.linspace(0, 1, FRAMES)
        mel = torch.arange(MELS, dtype=torch.float).unsqueeze(1)
        start = torch.rand(KEYWORDS, 3, 1, 1, generator=patterns) * MELS
        slope = (torch.rand(KEYWORDS, 3, 1, 1, generator=patterns) - 0.5) * MELS
        tracks = torch.exp(-0.5 * ((mel - start - slope * time) / 1.5) ** 2).sum(dim=1)
        self.keywords = torch.randint(0, KEYWORDS, (n_clips,), generator=gen)
        shifts = torch.randint(-8, 9, (n_clips,), generator=gen).tolist()
        self.clips = torch.stack(
            [tracks[k].roll(s, dims=-1) for k, s in zip(self.keywords.tolist(), shifts, strict=False)]
        )
        self.clips += 0.4 * torch.randn(self.clips.shape, generator=gen)

    def __len__(self):
        return len(self.clips)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.clips[indices], self.keywords[indices]


def spectrogram_classifier(width, depth):
    layers = [nn.Conv1d(MELS, width, 5, padding=2), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv1d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, KEYWORDS))


class KeywordDistiller(L.LightningModule):
    def __init__(self, teacher, temperature=3.0, hard_weight=0.3, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.temperature = temperature
        self.hard_weight = hard_weight
        self.teacher = teacher
        self.student = spectrogram_classifier(width=64, depth=4)

    def on_train_epoch_start(self):
        self.teacher.eval()

    def training_step(self, batch, batch_idx):
        clips, keywords = batch
        teacher_logits = self.teacher(clips)  # costs time
        student_logits = self.student(clips)
        soft = F.kl_div(
            F.log_softmax(student_logits / self.temperature, dim=1),
            F.log_softmax(teacher_logits / self.temperature, dim=1),
            log_target=True,
            reduction="batchmean",
        )
        hard = F.cross_entropy(student_logits, keywords)
        loss = self.hard_weight * hard + (1 - self.hard_weight) * self.temperature**2 * soft
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(clips))
        return loss

    def validation_step(self, batch, batch_idx):
        clips, keywords = batch
        accuracy = (self.student(clips).argmax(dim=1) == keywords).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(clips))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.student.parameters(), lr=self.lr, fused=True)


def fit_teacher(clips, keywords, steps=40):
    teacher = spectrogram_classifier(width=128, depth=3)
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=2e-3, fused=True)
    for _step in range(steps):
        rows = torch.randint(0, len(clips), (64,))
        optimizer.zero_grad()
        F.cross_entropy(teacher(clips[rows]), keywords[rows]).backward()
        optimizer.step()
    return teacher


def main():
    L.seed_everything(21)
    train, val = KeywordSpectrograms(8000, seed=1), KeywordSpectrograms(256, seed=2)
    teacher = fit_teacher(train.clips, train.keywords)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(
        KeywordDistiller(teacher),
        DataLoader(train, batch_size=32, shuffle=True, drop_last=True, collate_fn=tuple),
        DataLoader(val, batch_size=128, collate_fn=tuple),
    )
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
