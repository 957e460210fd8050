"""A network predicts distances between the residues of proteins; manual optimization updates the trunk and the
distance head with an optimizer each, from one backward pass.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

RESIDUES, BINS = 21, 8  # residue 0 is padding


class Proteins(Dataset):
    """Sequences with binned distances of a chain whose steps depend on the residues."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randn(RESIDUES, 3, generator=torch.Generator().manual_seed(0))
        lengths = torch.randint(40, 129, (count,), generator=generator).tolist()
        self.sequences = [torch.randint(1, RESIDUES, (n,), generator=generator) for n in lengths]
        self.places = [steps[sequence].cumsum(0) for sequence in self.sequences]

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        return self.sequences[index], self.places[index]


class SimilarLengths(Sampler):
    """Batches of proteins of similar length, in random order."""

    def __init__(self, lengths, size):
        self.batches = torch.tensor(lengths).argsort(stable=True).split(size)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for i in torch.randperm(len(self.batches)).tolist():
            yield self.batches[i].tolist()


def collate(proteins):
    sequences = pad_sequence([sequence for sequence, _ in proteins], batch_first=True)
    places = pad_sequence([place for _, place in proteins], batch_first=True)
    bins = torch.bucketize(torch.cdist(places, places), torch.linspace(2, 14, BINS - 1))
    real = sequences != 0
    bins[~(real[:, :, None] & real[:, None, :])] = -1
    return sequences, bins


class Trunk(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(RESIDUES, width, padding_idx=0)
        self.rnn = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.mix = nn.Sequential(nn.Linear(2 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, sequences):
        x, _ = self.rnn(self.embed(sequences))
        return self.mix(x)


class DistanceHead(nn.Module):
    def __init__(self, width, inner=32):
        super().__init__()
        self.left, self.right = nn.Linear(width, BINS * inner), nn.Linear(width, BINS * inner)
        self.bias = nn.Parameter(torch.zeros(BINS, 1, 1))

    def forward(self, x):
        left = self.left(x).unflatten(2, (BINS, -1)).transpose(1, 2)
        right = self.right(x).unflatten(2, (BINS, -1)).permute(0, 2, 3, 1)
        return left @ right / left.shape[-1] ** 0.5 + self.bias


class Distances(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.automatic_optimization = False
        self.trunk = Trunk(width)
        self.head = DistanceHead(width)

    def loss(self, batch):
        sequences, bins = batch
        return F.cross_entropy(self.head(self.trunk(sequences)), bins, ignore_index=-1)

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        loss = self.loss(batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self):
        trunk = torch.optim.AdamW(self.trunk.parameters(), lr=1e-3, fused=True)
        head = torch.optim.SGD(self.head.parameters(), lr=0.05, momentum=0.9, fused=True)
        return trunk, head


if __name__ == "__main__":
    lightning.seed_everything(37)
    proteins = Proteins(576, 1)
    lengths = [len(sequence) for sequence in proteins.sequences]
    train = DataLoader(proteins, batch_sampler=SimilarLengths(lengths, 16), collate_fn=collate)
    valid = DataLoader(Proteins(64, 2), batch_size=16, collate_fn=collate)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Distances(), train, valid)
    print("val_loss", trainer.callback_metrics["val_loss"].item())
