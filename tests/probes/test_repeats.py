"""Results whose rows are copies of each other are found, and replayed with each row once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_perf.probes.repeats import n_copies_in
from lightning_perf.probes.replay.calls import TensorSpec
from lightning_perf.probes.replay.repeated_rows import repeated_rows, without_repeats

from .replay.replaying import asked, logged, probe_of

rows, images, words = torch.rand(32, 64), torch.rand(6, 3, 16, 16), torch.rand(16, 10, 32)


@pytest.mark.parametrize(
    ("value", "n"),
    [
        (rows.repeat(8, 1), 8),
        (rows.repeat_interleave(8, 0), 8),
        (words.repeat_interleave(4, 0), 4),  # sequences: their rows are ten apart
        (words[:, :1].expand(-1, 10, -1), 10),
        (rows.view(1, 32, 64).expand(5, -1, -1).reshape(-1, 64), 5),
        (images.repeat_interleave(5, 0), 5),
        (images.repeat(5, 1, 1, 1), 5),
        (F.linear(rows.repeat(8, 1), torch.rand(24, 64)), 8),
    ],
)
def test_copies_of_each_row_are_counted(value, n):
    assert n_copies_in(value) == n


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(256, 64),
        torch.zeros(256, 64),  # one row only: there is nothing to repeat
        rows[:1].expand(256, -1),
        torch.cat([rows.repeat(7, 1), torch.rand(32, 64)]),  # some occur once
        torch.cat([rows.repeat(7, 1), rows.flip(0)]),  # not equally far apart
        rows[:4].repeat(2, 1),  # small
        rows.repeat(8, 1) > 0.5,
        torch.relu(torch.rand(1000, 64) - 2),
        rows.repeat(8, 1) * (torch.rand(256, 64) > 0.1),  # dropout
        torch.full((256, 64), float("nan")),
        rows.repeat(8, 1).to_sparse(),
        rows.repeat(8, 1).to("meta"),
        torch.rand(5000),
    ],
)
def test_others_are_not(value):
    assert n_copies_in(value) == 1


class Ranker(nn.Module):
    """Encodes what it gets for each of ``n`` candidates."""

    def __init__(self, n=8, layer=None):
        super().__init__()
        self.n, self.encoder = n, layer or nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))

    def forward(self, x):
        return self.encoder(x.repeat_interleave(self.n, dim=0))


def test_layers_that_get_copies_are_recorded_with_their_line():
    found = repeated_rows(logged(Ranker(), rows))
    assert (found.n_copies, found.shape, found.n_operators) == (
        8,
        (256, 64),
        5,
    )  # also the copy itself, and the square in the loss
    assert found.site.startswith("test_repeats.py:")
    assert found.total_s > 0


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (None, rows),
        (nn.Linear(64, 64, bias=False), rows),
        (nn.Conv2d(3, 8, 3), images),
        (nn.Linear(32, 32), words),
    ],
)
def test_operators_are_replayed_with_each_row_once(layer, x):
    model = Ranker(8, layer)
    log = logged(model, x)
    for work in without_repeats(log):
        before, after = (call_elements(side) for side in (work.as_is, work.treated))
        assert before == 8 * after
    probe = probe_of(model)
    probe.answer(asked("without-repeats"), log, 1000.0)
    (replayed,) = probe.record().results
    assert replayed.n_operators >= 1
    assert replayed.speedup is not None or replayed.is_negligible, replayed.reason


def call_elements(bounds):
    """Return the elements of the first tensor with rows."""
    ((_, args, _),) = bounds
    return next(math.prod(value.shape) for value in args if isinstance(value, TensorSpec) and len(value.shape) > 1)


def test_attention_over_copies_is_found():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            x = x.repeat(4, 1, 1, 1) * self.scale
            return F.scaled_dot_product_attention(x, x, x)

    works = without_repeats(logged(Attention(), torch.rand(2, 4, 64, 16)))
    assert any("scaled_dot_product" in work.calls[0].name for work in works)


class Sometimes(nn.Module):
    """Uses a layer with copies of rows, and once without."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(torch.cat([x] * 8)) + self.layer(torch.cat([x, *torch.rand(7, 32, 64)]))


def test_layer_that_gets_copies_only_sometimes_is_not_replayed():
    assert all("addmm" not in work.calls[0].name for work in without_repeats(logged(Sometimes(), rows)))


def test_nothing_is_found_without_copies():
    log = logged(nn.Linear(64, 64), torch.rand(256, 64))
    assert repeated_rows(log) is None
    assert without_repeats(log) == []


def test_other_sums_of_rows_do_not_count():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(256, 64))

        def forward(self, x):
            return x.repeat(8, 1) + self.weight

    assert repeated_rows(logged(Sum(), rows)) is None
