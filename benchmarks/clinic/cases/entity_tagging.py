"""Trains a small tagger for entities in sentences on top of a fixed Transformer encoder, with random words masked. The
mistake: only the tagger is given to the optimizer, but the gradients of the whole encoder are computed all the same.
---
expect: PD323
fix:
  ? "        states = self.encoder(self.embed(tokens) + self.position, src_key_padding_mask=padding)"
  : |2
            with torch.no_grad():
                states = self.encoder(self.embed(tokens) + self.position, src_key_padding_mask=padding)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassF1Score

VOCAB, LENGTH, TAGS, MASK = 5000, 32, 9, 1


def make_sentences(count, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, VOCAB, (count, LENGTH), generator=generator)
    tags = torch.where(tokens % 5 == 0, 1 + tokens % (TAGS - 1), 0)
    lengths = torch.randint(LENGTH - 6, LENGTH + 1, (count, 1), generator=generator)
    beyond = torch.arange(LENGTH) >= lengths
    return TensorDataset(tokens.masked_fill(beyond, 0), tags.masked_fill(beyond, -100))


def pretrained_encoder(width, layers):
    torch.manual_seed(1234)
    embed = nn.Embedding(VOCAB, width)
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    return embed, nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class EntityTagger(L.LightningModule):
    def __init__(self, width=96, layers=3):
        super().__init__()
        self.embed, self.encoder = pretrained_encoder(width, layers)
        self.register_buffer("position", torch.randn(LENGTH, width) * 0.1)
        self.tagger = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, TAGS))
        self.val_f1 = MulticlassF1Score(TAGS, ignore_index=-100)

    def forward(self, tokens):
        padding = tokens == 0
        states = self.encoder(self.embed(tokens) + self.position, src_key_padding_mask=padding)
        words = self.embed(tokens).detach()
        return self.tagger(torch.cat([states, words], 2)).transpose(1, 2)

    def training_step(self, batch, batch_idx):
        tokens, tags = batch
        masked = (torch.rand(tokens.shape) < 0.1) & (tokens != 0)
        loss = F.cross_entropy(self(tokens.masked_fill(masked, MASK)), tags)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        tokens, tags = batch
        logits = self(tokens)
        self.val_f1.update(logits, tags)
        self.log("val_loss", F.cross_entropy(logits, tags))
        self.log("val_f1", self.val_f1, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.tagger.parameters(), lr=2e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    L.seed_everything(13)
    train = DataLoader(make_sentences(1280, 0), batch_size=32, shuffle=True)
    val = DataLoader(make_sentences(128, 1), batch_size=64)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, log_every_n_steps=20)
    trainer.fit(EntityTagger(), train, val)


if __name__ == "__main__":
    main()
