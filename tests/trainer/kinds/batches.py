"""Batches of every form."""

from __future__ import annotations

import dataclasses
import random
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader

from trainer.models import N_FEATURES, Tiny

from .loops import N_BATCHES, Deep, Varied, varied
from .registry import Run, kind

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Record:
    """A batch as a dataclass."""

    x: torch.Tensor
    names: list[str]


class Marked(torch.Tensor):
    """A tensor subclass."""


class Opaque:
    """A batch without a known structure, which notes when an item is asked for."""

    def __init__(self, x: torch.Tensor, notes: list[Any]) -> None:
        self.x, self.notes = x, notes

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> Any:
        self.notes.append("item")
        return self.x[index]


class Lazy(dict):
    """Computes items when they are accessed, with random numbers."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) * (1 + random.random() / 100)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


class DrawsShape:
    """Its shape property draws random numbers."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    @property
    def shape(self) -> Any:
        random.random()
        return self.x.shape + torch.Size([int(torch.rand(()) * 0)])

    def to(self, *_: Any, **__: Any) -> DrawsShape:
        return self

    def __len__(self) -> int:
        return int(torch.randint(1, 3, ()))

    @property
    def nbytes(self) -> int:
        return random.randrange(5)

    def size(self, *_: Any) -> Any:
        return torch.rand(2).shape


class ReadsX(Deep):
    """Takes the features out of any batch."""

    def __init__(self, take: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.take = take

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(self.take(batch).float().reshape(-1, N_FEATURES))


def of(make: Callable[[torch.Tensor], Any]) -> DataLoader:
    """Return a loader that makes batches by a function."""
    return DataLoader(Varied(), batch_size=2, collate_fn=lambda samples: make(torch.stack(samples)))


@kind("records-and-tuples", core=True)
def records(run: Run) -> None:
    run.trainer(max_epochs=1).fit(ReadsX(lambda b: b.x), of(lambda x: Record(x, ["a", "b"])))
    run.trainer(max_epochs=1).fit(ReadsX(lambda b: b.x), of(lambda x: Pair(x, [1, None])))
    run.trainer().fit(ReadsX(lambda b: b["x"]), of(lambda x: {"x": x, "names": ["a", "b"], "deep": [{"k": "v"}]}))


@kind("token-batches", core=True)
def tokens(run: Run) -> None:
    class Embeds(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(9, N_FEATURES, padding_idx=0)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            ids = batch.data if isinstance(batch, PackedSequence) else batch["input_ids"]
            run.notes.append(ids.tolist())
            return self.layer(self.table(ids)).square().mean()

    def ids(x: torch.Tensor) -> torch.Tensor:
        return (x * 4).abs().long().clamp(max=8)

    run.trainer(max_epochs=1).fit(Embeds(), of(lambda x: {"input_ids": ids(x)}))
    run.trainer(max_epochs=1).fit(Embeds(), of(lambda x: {"input_ids": ids(x), "attention_mask": (ids(x) > 0).long()}))
    run.trainer(max_epochs=1).fit(Embeds(), of(lambda x: {"input_ids": ids(x), "lengths": ids(x)[:, 0]}))
    run.trainer().fit(Embeds(), of(lambda x: pack_sequence([ids(x)[0], ids(x)[1][:1]])))


@kind("opaque-batches", core=True)
def opaque(run: Run) -> None:
    run.trainer().fit(ReadsX(lambda b: b.x), of(lambda x: Opaque(x, run.notes)))


@kind("lazy-batches", core=True)
def lazy(run: Run) -> None:
    class Moves(ReadsX):
        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            return batch

    run.trainer().fit(Moves(lambda b: b["x"]), of(lambda x: Lazy(x=x, y=x + 1)))


@kind("shape-draws-random-numbers", core=True)
def draws_shape(run: Run) -> None:
    run.trainer().fit(ReadsX(lambda b: b.x), of(DrawsShape))


@kind("tensor-subclass-batches")
def subclass(run: Run) -> None:
    run.trainer().fit(ReadsX(lambda b: b), of(lambda x: x.as_subclass(Marked)))


@kind("sparse-and-nested-batches")
def sparse(run: Run) -> None:
    run.trainer(max_epochs=1).fit(ReadsX(lambda b: b.to_dense()), of(lambda x: x.to_sparse()))
    run.trainer(max_epochs=1).fit(ReadsX(lambda b: b.to_dense()), of(lambda x: x.to_sparse_csr()))
    nested = of(lambda x: torch.nested.nested_tensor([x[0], x[1]]))
    run.trainer().fit(ReadsX(lambda b: torch.stack(b.unbind())), nested)


@kind("jagged-tensors-in-the-step", core=True, ignore=(r"warnings: .*flops computation",))
def jagged(run: Run) -> None:
    class Jagged(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Linear(N_FEATURES, 4), torch.nn.LayerNorm(4), torch.nn.ReLU())

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            rows = torch.nested.nested_tensor([batch[:1], batch], layout=torch.jagged)
            heads = self.layer(rows).unflatten(-1, [2, 2]).transpose(1, 2)
            attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
            return attended.transpose(1, 2).flatten(-2).values().square().mean()

    run.trainer().fit(Jagged(), varied())


@kind("empty-and-odd-batches")
def odd(run: Run) -> None:
    class Step(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(torch.ones(2, N_FEATURES)).mean()

    made: list[Callable[[Any], Any]] = [
        lambda x: x[:0],
        lambda x: [],
        lambda x: {},
        lambda x: (),
        lambda x: "text",
        lambda x: x.to(torch.complex64),
        lambda x: x.bool(),
        lambda x: torch.ones(()),
        lambda x: {"a": {"b": [x, None, 3, object]}},
        lambda x: x.expand(3, *x.shape).transpose(0, 1),
        lambda x: x.requires_grad_(),
        lambda x: 5,
    ]
    batches = iter(range(1000))
    train = of(lambda x: made[next(batches) % len(made)](x))
    run.trainer().fit(Step(), train)


@kind("batch-that-raises-when-asked")
def raising(run: Run) -> None:
    class Raises:
        def __init__(self, x: torch.Tensor) -> None:
            self.real = x

        @property
        def shape(self) -> Any:
            raise RuntimeError("no shape")

        def __len__(self) -> int:
            raise RuntimeError("no length")

        def __iter__(self) -> Any:
            raise RuntimeError("no items")

        @property
        def element_size(self) -> Any:
            raise RuntimeError("no size")

    run.trainer().fit(ReadsX(lambda b: b.real), of(Raises))


@kind("batch-is-an-iterator")
def iterator_batch(run: Run) -> None:
    class Takes(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return sum(self.loss(x) for x in batch)

    run.trainer().fit(Takes(), of(lambda x: iter([x, x * 2])))


@kind("batch-mutated-in-step")
def mutated(run: Run) -> None:
    class Mutates(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x = batch.pop("x")
            batch["seen"] = batch_idx
            return self.loss(x.add_(1))

    run.trainer().fit(Mutates(), of(lambda x: {"x": x}))


assert len(Varied()) == N_BATCHES * 2
