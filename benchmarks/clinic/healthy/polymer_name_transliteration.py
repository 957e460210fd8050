"""Trains a GRU encoder-decoder with attention that writes the systematic name of a polymer from its abbreviated
formula, with teacher forcing.
---
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SYMBOLS, SOURCE, TARGET, START = 60, 14, 18, 0


class NamePairs(Dataset):
    """Formulas and names; each symbol of the name follows from two symbols of the formula."""

    def __init__(self, count: int, seed: int):
        gen = torch.Generator().manual_seed(seed)
        self.formula = torch.randint(1, SYMBOLS, (count, SOURCE), generator=gen)
        place = torch.arange(TARGET)
        first, second = self.formula[:, place % SOURCE], self.formula[:, (place * 5 + 1) % SOURCE]
        self.name = (first + second) % (SYMBOLS - 1) + 1

    def __len__(self):
        return len(self.formula)

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.formula[index], self.name[index]


def as_is(batch):
    return batch


class Namer(lightning.LightningModule):
    def __init__(self, width: int = 128):
        super().__init__()
        self.source = nn.Embedding(SYMBOLS, width)
        self.target = nn.Embedding(SYMBOLS, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * width, width)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.merge = nn.Linear(2 * width, width)
        self.vocabulary = nn.Linear(width, SYMBOLS)

    def forward(self, formula, name):
        memory, last = self.encoder(self.source(formula))
        memory = self.bridge(memory)
        begin = self.bridge(torch.cat([last[0], last[1]], 1))
        previous = F.pad(name[:, :-1], (1, 0), value=START)  # teacher forcing: the true name, one place to the right
        state, _ = self.decoder(self.target(previous), begin[None])
        context = F.scaled_dot_product_attention(state, memory, memory)
        return self.vocabulary(torch.tanh(self.merge(torch.cat([state, context], 2))))

    def training_step(self, batch, batch_idx):
        formula, name = batch
        return F.cross_entropy(self(formula, name).flatten(0, 1), name.flatten())

    def validation_step(self, batch, batch_idx):
        formula, name = batch
        loss = F.cross_entropy(self(formula, name).flatten(0, 1), name.flatten())
        self.log("val_loss", loss, batch_size=len(name))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(1, verbose=False)
    train = DataLoader(NamePairs(96 * 45, seed=1), batch_size=96, shuffle=True, collate_fn=as_is)
    valid = DataLoader(NamePairs(512, seed=2), batch_size=256, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Namer(), train, valid)
