"""Spells out the answer to a crossword clue letter by letter from the clue's words, and solves held-out clues after
each epoch. The solving runs the decoder over the whole beginning of the word again for every letter.
---
expect: PD601
fix:
  'out, _ = self.decoder(self.letter(prefix), start)  # costs time': |2-
    out, start = self.decoder(self.letter(prefix[:, -1:]), start)
half: tune
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, CLUE_WORDS, LETTERS, ANSWER = 2000, 6, 28, 15
BEGIN, STOP = 26, 27


def clue_book(clues, seed):
    """Clues whose words hint at the letters of the answer; short answers end with a stop sign."""
    gen = torch.Generator().manual_seed(seed)
    hints = torch.randint(0, 26, (WORDS, 3), generator=torch.Generator().manual_seed(99))
    clue = torch.randint(0, WORDS, (clues, CLUE_WORDS), generator=gen)
    answer = hints[clue].flatten(1)[:, :ANSWER].clone()
    length = torch.randint(4, ANSWER + 1, (clues, 1), generator=gen)
    answer[torch.arange(ANSWER) >= length] = STOP
    return clue, answer


class ClueSolver(L.LightningModule):
    def __init__(self, dim=128, hidden=192, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.word = nn.Embedding(WORDS, dim)
        self.clue_layer = nn.Linear(CLUE_WORDS * dim, hidden)
        self.letter = nn.Embedding(LETTERS, dim)
        self.decoder = nn.GRU(dim, hidden, batch_first=True)
        self.spell = nn.Linear(hidden, LETTERS)

    def encode(self, clue):
        return torch.tanh(self.clue_layer(self.word(clue).flatten(1))).unsqueeze(0)

    def training_step(self, batch, batch_idx):
        clue, answer = batch
        begin = torch.full_like(answer[:, :1], BEGIN)
        out, _ = self.decoder(self.letter(torch.cat([begin, answer[:, :-1]], dim=1)), self.encode(clue))
        loss = nn.functional.cross_entropy(self.spell(out).flatten(0, 1), answer.flatten())
        self.log("train_loss", loss, batch_size=len(clue))
        return loss

    def solve(self, clue):
        start = self.encode(clue)
        prefix = torch.full((len(clue), 1), BEGIN, device=self.device)
        for _ in range(ANSWER):
            out, _ = self.decoder(self.letter(prefix), start)  # costs time
            guess = self.spell(out[:, -1]).argmax(dim=-1, keepdim=True)
            prefix = torch.cat([prefix, guess], dim=1)
        return prefix[:, 1:]

    def validation_step(self, batch, batch_idx):
        clue, answer = batch
        right = (self.solve(clue) == answer).float()
        self.log("val_letters", right.mean(), batch_size=len(clue))
        self.log("val_solved", right.amin(dim=1).mean(), batch_size=len(clue))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(33)
    train = DataLoader(TensorDataset(*clue_book(1920, seed=1)), batch_size=64, shuffle=True)
    val = DataLoader(TensorDataset(*clue_book(2048, seed=2)), batch_size=128)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=8,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(ClueSolver(), train, val)
    metrics = {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}
    print(metrics)


if __name__ == "__main__":
    main()
