"""Samples, tokens and padding of batches, without running code of theirs."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import DataLoader

from lightning_perf import DoctorOptions, PerfDoctor
from lightning_perf.errors import ConfigError
from lightning_perf.probes.model import tokens
from lightning_perf.probes.model.tokens import (
    MAX_BATCHES,
    BatchUnits,
    EmbeddingInfo,
    TokensProbe,
    layout_by_values,
    layouts_of,
)
from lightning_perf.probes.plain import size_reader
from lightning_perf.records import Session

IDS = torch.tensor([[5, 6, 7, 0], [8, 0, 0, 0]])
MASK = (IDS != 0).long()
EMBEDS = EmbeddingInfo(True, 0)


@dataclasses.dataclass
class Record:
    """A batch as a dataclass."""

    input_ids: torch.Tensor


class LazyMapping(dict):
    """Computes items when they are accessed."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("code of the batch was run")


class LazyObject:
    """Computes attributes when they are accessed."""

    def __getattr__(self, name: str) -> Any:
        raise (AttributeError if name.startswith("__") else AssertionError)("code of the batch was run")


def geometric(n: int) -> Any:
    """Return an object that stores its fields as PyTorch Geometric's ``Batch`` does."""
    ptr = torch.arange(n + 1) * 3
    return SimpleNamespace(_store=SimpleNamespace(_mapping={"x": torch.zeros(3 * n, 2), "ptr": ptr}))


@pytest.mark.parametrize(
    ("batch", "n_samples", "n_tokens"),
    [
        (IDS, 2, 8),
        ((IDS, torch.zeros(2)), 2, 8),
        ({"labels": torch.zeros(2, 9), "input_ids": IDS}, 2, 8),
        ({"text": {"input_ids": IDS, "attention_mask": MASK}}, 2, 8),
        (UserDict(input_ids=IDS, attention_mask=MASK), 2, 8),  # as Hugging Face's BatchEncoding
        (Record(IDS), 2, 8),
        (LazyMapping(input_ids=IDS), 2, 8),
        ({"input_ids": IDS.reshape(1, 2, 4)}, 1, 8),
        ({"audio": torch.zeros(2, 4), "attention_mask": MASK}, 2, 8),
        ({"query": {"input_ids": IDS}, "passage": {"input_ids": torch.ones(2, 9, dtype=torch.int64)}}, 2, 26),
        ({"input_ids": IDS, "decoder_input_ids": IDS}, 2, 8),
        (pack_sequence([torch.arange(5), torch.arange(3)]), 2, 8),
        ((pack_sequence([torch.arange(5), torch.arange(3)]), torch.zeros(2)), 2, 8),
        ({"audio": torch.zeros(2, 4), "attention_mask": torch.ones(2, 1, 4, 4).tril().bool()}, 2, None),
        (torch.zeros(2, 4), 2, None),
        ((torch.zeros(2, 4), IDS), 2, None),  # the labels of images
        (torch.arange(2), 2, None),
        (geometric(7), 7, None),
        (SimpleNamespace(ptr=torch.arange(4)), 3, None),
        (SimpleNamespace(num_graphs=5), 5, None),
        (SimpleNamespace(_tensordict={"x": IDS}, _batch_size=torch.Size([6, 2])), 6, None),  # as a TensorDict
        (Record(SimpleNamespace(_batch_size=torch.Size([6]))), 6, None),  # as a tensorclass
        (SimpleNamespace(_batch_size=torch.Size([])), -1, None),
        (LazyObject(), -1, None),
    ],
)
def test_samples_and_tokens_of_a_batch_are_read_from_shapes(batch: Any, n_samples: int, n_tokens: int | None) -> None:
    units = BatchUnits()
    units.embeddings = EMBEDS
    assert size_reader(batch)(batch) == n_samples
    tokens = units.tokens(batch)
    assert (None if tokens is None else tokens(batch)) == n_tokens


def test_integers_are_no_tokens_when_no_embedding_looks_them_up() -> None:
    assert layouts_of(IDS, EmbeddingInfo())[0].tokens is None
    assert layouts_of({"input_ids": IDS}, EmbeddingInfo())[0].tokens is not None


@pytest.mark.parametrize(
    ("batch", "basis"),
    [
        ({"input_ids": IDS, "attention_mask": MASK}, "attention_mask"),
        ({"input_ids": IDS, "attention_mask": MASK.bool()}, "attention_mask"),
        ({"input_ids": IDS, "attention_mask": MASK.float()}, "padding id 0"),  # added to scores: no mask of tokens
        ({"input_ids": IDS, "attention_mask": torch.ones(4, 4).tril().long()}, "padding id 0"),  # of pairs of tokens
        ({"input_ids": IDS, "lengths": torch.tensor([3, 1])}, "lengths"),
        ({"input_ids": IDS, "lengths": torch.tensor([3.0, 1.0])}, "padding id 0"),
        ({"input_ids": IDS, "cu_seqlens": torch.tensor([0, 8])}, "packed sequences have no padding"),
        (pack_sequence([torch.arange(5)]), "packed sequences have no padding"),
    ],
)
def test_padding_is_counted_from_what_the_batch_holds(batch: Any, basis: str) -> None:
    assert layouts_of(batch, EMBEDS)[0].basis == basis


def test_padding_is_unknown_when_neither_batch_nor_model_has_it() -> None:
    layout = layouts_of({"input_ids": IDS}, EmbeddingInfo(True))[0]
    assert layout.tokens is not None
    assert layout.padding is None
    assert "padding_idx" in layout.basis


FRAMES = torch.rand(3, 8, 5) + 1.0
for _i, _length in enumerate((8, 3, 6)):
    FRAMES[_i, _length:] = 0.0
LENGTHS = torch.tensor([8, 3, 6])


@pytest.mark.parametrize(
    ("batch", "dim"),
    [
        ((FRAMES, LENGTHS, torch.arange(3)), 1),  # the labels, 0 to 2, are no lengths
        ({"audio": FRAMES.transpose(1, 2), "n_frames": LENGTHS.int()}, 2),
        ((FRAMES, LENGTHS - 1), None),  # the last of each sequence would be taken for padding
        ((FRAMES, torch.tensor([8, 4, 6])), None),
        ((FRAMES + torch.rand_like(FRAMES), LENGTHS), None),
        ((torch.rand(3, 8, 5), torch.tensor([1, 2, 3])), None),
        ((FRAMES, torch.tensor([9, 3, 6])), None),
        ((FRAMES, LENGTHS.float()), None),
        ((torch.zeros(3, 8, 5), LENGTHS), None),
        ((torch.rand(4, 2), torch.ones(4, dtype=torch.int64)), None),  # two features, and classes
        ((torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([1, 1])), None),  # all of one length
        ((torch.tensor([[1.0, 0.0], [1.0, 2.0]]), torch.tensor([1, 2])), None),  # one padded place could be chance
        ((torch.tensor([[1.0, 0.0, 0.0], [1.0, 2.0, 3.0]]), torch.tensor([1, 3])), 1),
        ((FRAMES.to_sparse(), LENGTHS), None),
    ],
)
def test_sequences_of_floats_are_padded_behind_the_lengths_in_the_batch(batch: Any, dim: int | None) -> None:
    found = layout_by_values(batch, layouts_of(batch, EmbeddingInfo(False))[0])
    assert (found.dim if found.padding is not None else None) == dim


def test_padding_of_floats_is_counted_in_full_batches_as_well() -> None:
    full = FRAMES + 1.0, torch.tensor([8, 8, 8])
    probe, _ = counting(4, lambda step: full if step else (FRAMES, LENGTHS))
    record = probe.record()
    assert (record.basis, record.n_batches, record.n_tokens, record.n_padding) == ("lengths", 4, 4 * 24, 7)


def test_layout_of_an_earlier_batch_is_not_used_for_tensors_of_other_dimensions() -> None:
    other = torch.rand(3, 8), torch.tensor([8, 3, 6])
    probe, _ = counting(4, lambda step: other if step else (FRAMES.transpose(1, 2), LENGTHS))
    assert probe.record().n_batches == 1


def test_few_tensors_of_a_batch_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    monkeypatch.setattr(tokens, "_padded_dim", lambda items, lengths: compared.append(items))
    batch = [(torch.rand(3, 8), torch.tensor([8, 3, 6])) for _ in range(50)]
    layout_by_values(batch, layouts_of(batch, EmbeddingInfo(False))[0])
    assert len(compared) == 16


def test_padding_of_tokens_is_counted_by_lengths_without_a_name() -> None:
    batch = IDS, torch.tensor([3, 1])
    found = layout_by_values(batch, layouts_of(batch, EmbeddingInfo(True))[0])
    assert (found.basis, found.tokens.shape if found.tokens is not None else None) == ("lengths", (2, 4))


@pytest.mark.parametrize(
    "batch_of",
    [
        lambda short, full: {"query": short, "passage": full},
        lambda short, full: [short, full],  # as sentence-transformers has them
        lambda short, full: {key: [short[key], full[key]] for key in short},
    ],
)
def test_padding_is_counted_in_all_inputs_of_a_batch(batch_of: Any) -> None:
    short, full = ({"input_ids": IDS, "attention_mask": mask} for mask in (MASK, torch.ones_like(IDS)))
    record = counting(4, lambda step: batch_of(short, full))[0].record()
    assert (record.n_batches, record.n_tokens, record.n_padding) == (4, 4 * 16, 4 * 4)
    assert (record.trimmed_tokens, record.bucketed_tokens) == (4 * 14, 4 * 14)


def test_padding_is_unknown_when_it_is_in_one_input_of_a_batch() -> None:
    probe, loop = probe_of()
    loop.units.embeddings = EmbeddingInfo(True)
    probe.step_begins({"query": {"input_ids": IDS, "attention_mask": MASK}, "passage": {"input_ids": IDS}})
    assert probe.record() is None
    assert "padding_idx" in probe.missing["padding"]


class LanguageModel(LightningModule):
    """Sums embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 2, padding_idx=0)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids = batch["input_ids"] if isinstance(batch, dict) else batch.data
        return self.table(ids).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


TEXTS = [torch.arange(1, 2 + (7 * n) % 13) for n in range(24)]


def padded(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"input_ids": pad_sequence(texts, batch_first=True)}


def fitted(collate: Any, texts: Any = TEXTS, **options: Any) -> Session:
    doctor = PerfDoctor(schedule=None, reports=(), options=DoctorOptions(replay=False, ceilings=False, **options))
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[doctor],
    )  # fmt: skip
    trainer.fit(LanguageModel(), DataLoader(texts, batch_size=4, collate_fn=collate))
    assert doctor.session is not None
    return doctor.session


def test_tokens_of_a_padded_language_model_agree_with_a_count_by_hand() -> None:
    session = fitted(padded)
    lengths = np.array([len(text) for text in TEXTS]).reshape(-1, 4)
    places = int((lengths.max(axis=1) * 4).sum())
    (epoch,), steady, padding = session.epochs, session.steady, session.padding
    assert epoch.tokens == places
    assert epoch.samples == len(TEXTS)
    last = lengths[-steady.n_steps :]
    assert steady.tokens_per_s == pytest.approx(int((last.max(axis=1) * 4).sum()) / steady.span_s, rel=1e-12)
    assert steady.samples_per_s == pytest.approx(last.size / steady.span_s, rel=1e-12)
    assert (padding.n_batches, padding.n_tokens) == (6, places)
    assert padding.n_padding == places - lengths.sum()
    assert padding.trimmed_tokens == places
    ordered = np.sort(lengths.reshape(-1)).reshape(-1, 4)
    assert padding.bucketed_tokens == int((ordered.max(axis=1) * 4).sum())
    assert padding.basis == "padding id 0"


def test_tokens_of_a_packed_language_model_agree_with_a_count_by_hand() -> None:
    session = fitted(lambda texts: pack_sequence(texts, enforce_sorted=False))
    n = [len(text) for text in TEXTS]
    assert session.epochs[0].tokens == sum(n)
    assert session.epochs[0].samples == len(TEXTS)
    last = sum(n[-4 * session.steady.n_steps :])
    assert session.steady.tokens_per_s == pytest.approx(last / session.steady.span_s, rel=1e-12)
    assert session.padding is None
    assert "packed" in session.missing["padding"]


def test_batches_of_a_fixed_length_could_be_trimmed_to_their_longest_sequence() -> None:
    def to_length_20(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = pad_sequence(texts, batch_first=True)
        return {"input_ids": nn.functional.pad(ids, (0, 20 - ids.shape[1]))}

    padding = fitted(to_length_20).padding
    lengths = np.array([len(text) for text in TEXTS]).reshape(-1, 4)
    assert padding.n_tokens == len(TEXTS) * 20
    assert padding.trimmed_tokens == int((lengths.max(axis=1) * 4).sum())


def probe_after(batch: Any) -> TokensProbe:
    loop = SimpleNamespace(units=BatchUnits(), main=SimpleNamespace(n_steps=0), is_profiling=False)
    options = SimpleNamespace(batch_size_fn=None, tokens_fn=None)
    run: Any = SimpleNamespace(loop=loop, options=options, probes=SimpleNamespace(switch_off=None))
    probe = TokensProbe(run)
    probe.step_begins(batch)
    return probe


def test_lengths_of_other_sequences_are_not_taken_for_those_of_the_tokens() -> None:
    audio_lengths = torch.tensor([300, 200])
    probe = probe_after({"tokens": IDS, "input_lengths": audio_lengths})
    assert probe.record() is None
    assert "of another tensor" in probe.reasons()["padding"]


def test_padding_that_the_device_has_not_returned_yet_is_missing_with_that_reason() -> None:
    probe = probe_after({"input_ids": IDS.to("meta"), "attention_mask": MASK.to("meta")})
    assert probe.record() is None
    assert "when an epoch ends" in probe.reasons()["padding"]


def test_functions_of_the_user_count_samples_and_tokens() -> None:
    session = fitted(padded, batch_size_fn=lambda batch: 3, tokens_fn=lambda batch: np.int64(11))
    assert session.epochs[0].samples == 3 * 6
    assert session.epochs[0].tokens == 11 * 6


@pytest.mark.parametrize("returned", [torch.tensor(3), 1.5, -1, None, True])
def test_a_function_that_returns_no_number_is_reported_and_not_called_again(returned: Any) -> None:
    calls: list[Any] = []
    session = fitted(padded, batch_size_fn=lambda batch: calls.append(batch) or returned)
    assert len(calls) == 1
    assert session.epochs[0].samples is None
    assert session.epochs[0].tokens is not None
    assert [failure.probe for failure in session.probes_off] == ["batch_size_fn"]


def test_an_option_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokens_fn"):
        DoctorOptions(tokens_fn=3)


def probe_of(is_profiling: bool = False) -> tuple[TokensProbe, Any]:
    """Return a probe, and the loop whose steps it sees."""
    loop = SimpleNamespace(units=BatchUnits(), main=SimpleNamespace(n_steps=0), is_profiling=is_profiling)
    loop.units.embeddings = EMBEDS
    run: Any = SimpleNamespace(loop=loop, options=DoctorOptions(), probes=SimpleNamespace(switch_off=None))
    return TokensProbe(run), loop


def counting(n_steps: int, batch_of: Any) -> tuple[TokensProbe, int]:
    """Return a probe after many steps, and in how many of them it counted."""
    probe, loop = probe_of()
    n = 0
    for step in range(n_steps):
        loop.main.n_steps = step
        if probe.next_step <= step:
            probe.step_begins(batch_of(step))
            n += 1
    return probe, n


def test_few_batches_are_counted_and_kept_over_a_long_run() -> None:
    probe, n = counting(10_000, lambda step: IDS if step < 5_000 else IDS[:1])
    record = probe.record()
    assert n < 400
    assert MAX_BATCHES / 3 < record.n_batches < MAX_BATCHES
    assert record.n_tokens == pytest.approx(record.n_batches * 6, rel=0.1)  # half of them have two rows


def test_large_batches_are_not_kept_for_each_step() -> None:
    probe, _ = counting(40, lambda step: torch.ones(50_000, 2, dtype=torch.int64))
    assert probe.record().n_batches <= 3


def test_batches_of_changing_structure_are_read_by_what_each_holds() -> None:
    kinds = [{"input_ids": IDS}, {"input_ids": IDS, "attention_mask": MASK}, {"tokens": IDS}, {"x": torch.zeros(2)}]
    probe, _ = counting(8, lambda step: kinds[step % 4])
    assert probe.record().n_batches == 6


def test_batches_without_tokens_are_looked_at_ever_more_rarely() -> None:
    looked: list[int] = []

    def batch_of(step: int) -> Any:
        looked.append(step)
        return torch.zeros(4, 8)

    counting(1000, batch_of)
    assert looked == [*range(8), 8, 10, 14, 22, 38, 70, 134, 262, 518]


def test_nothing_is_counted_in_a_profiler_window() -> None:
    probe, _ = probe_of(is_profiling=True)
    probe.step_begins(IDS)
    assert probe.record() is None
