"""Trains a recurrent translator from keypoint sequences of sign language to glosses, with teacher forcing and a
learned attention over the frames.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

KEYPOINTS = 54
FRAMES = 60
GLOSSES = 300
SENTENCE = 8
START = 0


def synthetic_signs(count, seed):
    """Each gloss is a movement of all keypoints; a video plays the glosses of its sentence one after the other."""
    gen = torch.Generator().manual_seed(seed)
    movement = torch.randn(GLOSSES, 2 * KEYPOINTS, generator=gen)
    sentence = torch.randint(1, GLOSSES, (count, SENTENCE), generator=gen)
    playing = sentence[:, torch.arange(FRAMES) * SENTENCE // FRAMES]
    swing = torch.sin(torch.arange(FRAMES) * 0.8)[:, None]
    frames = movement[playing] * (1 + 0.3 * swing)
    return frames + 0.3 * torch.randn(frames.shape, generator=gen), sentence


class SignTranslator(lightning.LightningModule):
    def __init__(self, width=192):
        super().__init__()
        self.frame = nn.Linear(2 * KEYPOINTS, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.gloss = nn.Embedding(GLOSSES, width)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, GLOSSES))

    def forward(self, frames, previous):
        memory, _ = self.encoder(F.relu(self.frame(frames)))
        query, _ = self.decoder(self.gloss(previous))
        seen = F.scaled_dot_product_attention(query, memory, memory)
        return self.out(torch.cat([query, seen], 2))

    def training_step(self, batch, batch_idx):
        frames, sentence = batch
        previous = F.pad(sentence[:, :-1], (1, 0), value=START)
        return F.cross_entropy(self(frames, previous).flatten(0, 1), sentence.flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(31, verbose=False)
    videos = TensorDataset(*synthetic_signs(960, seed=12))
    batches = BatchSampler(RandomSampler(videos), batch_size=32, drop_last=True)
    loader = DataLoader(videos, sampler=batches, batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SignTranslator(), loader)
