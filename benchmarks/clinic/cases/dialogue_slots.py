r"""Trains a transformer that tags slot values in the requests of a booking dialogue; the collate function finds the
values with patterns that it makes for each request, more of them than Python keeps compiled.
---
expect: PD108
fix:
  "self.vocabulary = {word: i + 1 for i, word in enumerate(vocabulary)}": |-
    self.vocabulary = {word: i + 1 for i, word in enumerate(vocabulary)}
            values = (value for group in (places, times, names) for value in group)
            self.patterns = {one: re.compile(rf"\b{re.escape(one)}\b", re.IGNORECASE) for one in values}
  'found = re.search(rf"\b{re.escape(value)}\b", text, re.IGNORECASE)  # costs time': |-
    found = self.patterns[value].search(text)
half: tune
"""

import random
import re

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SYLLABLES = [
    "ba",
    "con",
    "del",
    "fi",
    "gor",
    "han",
    "il",
    "jo",
    "kra",
    "lu",
    "mon",
    "nes",
    "or",
    "pal",
    "qui",
    "ros",
    "san",
    "tur",
    "ven",
    "wes",
]
TEMPLATES = (
    "i want a table at {place} {time} please for {name}",
    "book {place} for {name} {time}",
    "this is {name} is {place} open {time}",
    "{time} we would like to eat at {place} the name is {name}",
    "find me something like {place} that is free {time} and book for {name}",
)
FILLERS = ["uh", "um", "well", "so", "actually", "hm"]


def make_dialogues(number=9_000, seed=5):
    rng = random.Random(seed)
    places = sorted({" ".join("".join(rng.choices(SYLLABLES, k=2)) for _ in range(2)) for _ in range(1500)})
    days = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    names = sorted({" ".join("".join(rng.choices(SYLLABLES, k=3)) for _ in range(2)) for _ in range(1200)})
    times = [
        f"on {day} at {hour} {part}"
        for day in days
        for hour in range(1, 13)
        for part in ("sharp", "or later", "or so", "at most")
    ]
    requests = []
    for _ in range(number):
        place, time, name = rng.choice(places), rng.choice(times), rng.choice(names)
        request = rng.choice(TEMPLATES).format(place=place.title(), time=time, name=name.title())
        requests.append((request, (place, time, name)))
    return requests, places, times, names


class Requests(Dataset):
    def __init__(self, requests):
        self.requests = requests

    def __len__(self):
        return len(self.requests)

    def __getitem__(self, index):
        return self.requests[index]


class SlotCollate:
    """Adds hesitations to the requests, as people speak, and gives token numbers and a tag for each token."""

    def __init__(self, places, times, names, seed=0):
        words = " ".join(places + times + names + list(TEMPLATES) + FILLERS)
        vocabulary = sorted(set(words.split()))
        self.vocabulary = {word: i + 1 for i, word in enumerate(vocabulary)}
        self.random = random.Random(seed)

    def __call__(self, requests):
        tokens, tags = [], []
        for text, values in requests:
            text = f"{self.random.choice(FILLERS)} {text} {self.random.choice(FILLERS)}"
            words = text.lower().split()
            tag = [0] * len(words)
            for kind, value in enumerate(values, start=1):
                found = re.search(rf"\b{re.escape(value)}\b", text, re.IGNORECASE)  # costs time
                first = text.count(" ", 0, found.start())
                last = first + value.count(" ") + 1
                tag[first:last] = [kind] * (last - first)
            tokens.append(torch.tensor([self.vocabulary.get(word, 0) for word in words]))
            tags.append(torch.tensor(tag))
        return (
            nn.utils.rnn.pad_sequence(tokens, batch_first=True),
            nn.utils.rnn.pad_sequence(tags, batch_first=True, padding_value=-1),
        )


class SlotTagger(lightning.LightningModule):
    def __init__(self, vocabulary, width=48):
        super().__init__()
        self.embed = nn.Embedding(vocabulary + 1, width, padding_idx=0)
        self.place = nn.Parameter(0.02 * torch.randn(40, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.tag = nn.Linear(width, 4)

    def forward(self, tokens):
        hidden = self.embed(tokens) + self.place[: tokens.shape[1]]
        return self.tag(self.body(hidden, src_key_padding_mask=tokens == 0))

    def training_step(self, batch, batch_idx):
        tokens, tags = batch
        return F.cross_entropy(self(tokens).flatten(0, 1), tags.flatten(), ignore_index=-1)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(5)
    requests, *values = make_dialogues()
    collate = SlotCollate(*values)
    loader = DataLoader(Requests(requests), batch_size=96, shuffle=True, drop_last=True, collate_fn=collate)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SlotTagger(len(collate.vocabulary)), loader)


if __name__ == "__main__":
    main()
