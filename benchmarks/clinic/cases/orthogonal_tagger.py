"""A recurrent tagger with an orthogonal recurrent matrix learns to label the words of short sentences with entity
classes. The orthogonal matrix is computed again at every position of the sentence.
---
expect: PD328
fix:
  ? |2-
            for t in range(inputs.size(1)):
                state = torch.tanh(inputs[:, t] + self.recurrent(state))  # costs time
                states.append(state)
  : |2-
            with parametrize.cached():
                for t in range(inputs.size(1)):
                    state = torch.tanh(inputs[:, t] + self.recurrent(state))
                    states.append(state)
  ? "from torch.nn.utils import parametrizations"
  : "from torch.nn.utils import parametrizations, parametrize"
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, TAGS, LENGTH = 2000, 9, 24


class OrthogonalRNN(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.inputs = nn.Linear(inputs, hidden)
        self.recurrent = parametrizations.orthogonal(nn.Linear(hidden, hidden, bias=False))

    def forward(self, x):
        inputs = self.inputs(x)
        state = inputs.new_zeros(inputs.size(0), inputs.size(2))
        states = []
        for t in range(inputs.size(1)):
            state = torch.tanh(inputs[:, t] + self.recurrent(state))  # costs time
            states.append(state)
        return torch.stack(states, dim=1)


class EntityTagger(L.LightningModule):
    def __init__(self, embedding=64, hidden=64, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.embedding = nn.Embedding(VOCABULARY, embedding)
        self.rnn = OrthogonalRNN(embedding, hidden)
        self.head = nn.Sequential(nn.Linear(hidden, 256), nn.ReLU(), nn.Linear(256, TAGS))

    def forward(self, words):
        return self.head(self.rnn(self.embedding(words)))

    def training_step(self, batch, batch_idx):
        words, tags = batch
        loss = F.cross_entropy(self(words).flatten(0, 1), tags.flatten())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        words, tags = batch
        logits = self(words)
        self.log("val_loss", F.cross_entropy(logits.flatten(0, 1), tags.flatten()))
        self.log("val_accuracy", (logits.argmax(-1) == tags).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def make_sentences(count, generator):
    """A word's tag depends on the word and on the one before it."""
    words = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    previous = torch.roll(words, 1, dims=1)
    previous[:, 0] = 0
    return TensorDataset(words, (words // 7 + previous % 3) % TAGS)


if __name__ == "__main__":
    L.seed_everything(3)
    generator = torch.Generator().manual_seed(3)
    train = DataLoader(make_sentences(3200, generator), batch_size=64, shuffle=True, drop_last=True)
    val = DataLoader(make_sentences(256, generator), batch_size=64)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(EntityTagger(), train, val)
