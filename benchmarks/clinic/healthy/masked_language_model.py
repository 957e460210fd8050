"""A small transformer is trained as a masked language model on synthetic text; the vocabulary's scores are computed for
the masked positions only, and the masks are drawn per batch.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB = 1500
MASK = VOCAB
LENGTH = 48


class Corpus(Dataset):
    """Token sequences of a first-order process with a few likely successors per word."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        successors = torch.randint(VOCAB, (VOCAB, 4), generator=torch.Generator().manual_seed(42))
        words = torch.empty(count, LENGTH, dtype=torch.long)
        words[:, 0] = torch.randint(VOCAB, (count,), generator=gen)
        choices = torch.randint(4, (count, LENGTH), generator=gen)
        for position in range(1, LENGTH):
            words[:, position] = successors[words[:, position - 1], choices[:, position]]
        self.words = words

    def __len__(self):
        return len(self.words)

    def __getitems__(self, indices):
        return self.words[indices]


def mask_words(words):
    masked = torch.rand(words.shape) < 0.15
    return words.masked_fill(masked, MASK), words, masked


class MaskedLanguageModel(L.LightningModule):
    def __init__(self, dim=96, heads=4, layers=2, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(VOCAB + 1, dim)
        self.position = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="relu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.decoder = nn.Linear(dim, VOCAB)
        nn.init.normal_(self.embed.weight, std=0.02)

    def loss(self, batch):
        corrupted, words, masked = batch
        states = self.encoder(self.embed(corrupted) + self.position)
        logits = self.decoder(self.norm(states[masked]))
        return F.cross_entropy(logits, words[masked])

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), prog_bar=True, batch_size=len(batch[0]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(13)
    train_loader = DataLoader(Corpus(1536, 1), batch_size=24, shuffle=True, collate_fn=mask_words)
    val_loader = DataLoader(Corpus(128, 2), batch_size=64, collate_fn=mask_words)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        gradient_clip_val=1.0,
        log_every_n_steps=25,
        callbacks=[LearningRateMonitor("step")],
    )
    trainer.fit(MaskedLanguageModel(), train_loader, val_loader)
    print("validation loss", float(trainer.callback_metrics["val_loss"]))
