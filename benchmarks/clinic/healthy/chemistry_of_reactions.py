"""A GRU encoder and decoder learn to write the product of a chemical reaction from its reactants, with teacher forcing
and accumulated gradients.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

TOKENS, LENGTH = 40, 36  # 0 stands for the start of the product


class Reactions(Dataset):
    """Token sequences of reactants; the product follows from them by a fixed substitution and a swap of the halves."""

    def __init__(self, count, seed):
        substitution = 1 + torch.randperm(TOKENS - 1, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        self.reactants = torch.randint(1, TOKENS, (count, LENGTH), generator=generator)
        self.products = substitution[self.reactants - 1].roll(LENGTH // 2, 1)

    def __len__(self):
        return len(self.reactants)

    def __getitems__(self, indices):
        return self.reactants[indices], self.products[indices]


def as_is(batch):
    return batch


class ReactionModel(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(2 * width, TOKENS)

    def forward(self, reactants, products):
        memory, last = self.encoder(self.embed(reactants))
        shifted = F.pad(products[:, :-1], (1, 0))
        x, _ = self.decoder(self.embed(shifted), last)
        context = F.scaled_dot_product_attention(x, memory, memory)
        return self.output(torch.cat([x, context], 2))

    def loss(self, batch):
        reactants, products = batch
        return F.cross_entropy(self(reactants, products).flatten(0, 1), products.flatten())

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(29)
    train = DataLoader(Reactions(3456, 1), batch_size=32, shuffle=True, collate_fn=as_is)
    valid = DataLoader(Reactions(256, 2), batch_size=64, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ReactionModel(), train, valid)
    print("val_loss", trainer.callback_metrics["val_loss"].item())
