"""Operators on copies of items are found, and replayed with each item once."""

from __future__ import annotations

import inspect
from functools import partial

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_perf.probes.replay import calls
from lightning_perf.probes.replay.calls import TensorSpec
from lightning_perf.probes.replay.repeated_rows import in_both, repeated_rows, without_repeats
from lightning_perf.probes.sampled_steps.repeats import n_copies_in
from lightning_perf.records import RepeatedRows
from tests.probes.replay.replaying import asked, logged, probe_of

rows, images, words = torch.rand(32, 64), torch.rand(6, 3, 16, 16), torch.rand(16, 10, 32)
copies = rows.repeat(8, 1)


@pytest.mark.parametrize(
    ("value", "n"),
    [
        (copies, 8),
        (rows.repeat_interleave(8, 0), 8),
        (words.repeat_interleave(4, 0), 4),
        (words.repeat_interleave(4, 0).view(-1, 32), 4),  # rows of sequences are ten apart
        (words[:, :1].expand(-1, 10, -1).reshape(-1, 32), 10),
        (images.repeat_interleave(5, 0), 5),
        (images.repeat(5, 1, 1, 1).to(memory_format=torch.channels_last), 5),
        (copies.bfloat16(), 8),
        (torch.cat([torch.ones(256, 1), copies], 1), 8),  # the first column is the same in all
        (rows.repeat(8, 1).double(), 8),
    ],
)
def test_copies_of_each_item_are_counted(value, n):
    assert n_copies_in(value) == n


def two_equal_rows(n_apart):
    value = torch.rand(256, 64)
    value[128 - n_apart] = value[128]
    return value


def other_corner(value):
    value = value.clone()
    value[-1, ..., 1] += 0.5
    return value


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(256, 64),
        two_equal_rows(3),
        two_equal_rows(8),
        torch.zeros(256, 64),  # one row only: there is nothing to repeat
        rows[:1].expand(256, -1),
        torch.cat([rows.repeat(7, 1), torch.rand(32, 64)]),  # some occur once
        torch.cat([rows.repeat(7, 1), rows.flip(0)]),  # not equally far apart
        rows[:4].repeat(2, 1),  # small
        copies > 0.5,
        torch.relu(torch.rand(1000, 64) - 2),
        copies * (torch.rand(256, 64) > 0.1),  # dropout
        other_corner(images.repeat(5, 1, 1, 1)),  # e.g. pictures in front of the same background
        copies + 1e-6 * torch.rand(256, 64),
        torch.cat([rows, rows + 0.1 * torch.randn_like(rows)]).repeat(1, 64).bfloat16(),
        torch.full((256, 64), float("nan")),
        copies.to_sparse(),
        copies.to("meta"),
        copies.to(torch.float8_e4m3fn),
        torch.rand(5000),
    ],
)
def test_others_are_not(value):
    assert n_copies_in(value) == 1


@pytest.mark.parametrize(
    ("dtype", "noise", "n"), [(torch.float32, 1e-7, 8), (torch.float32, 1e-4, 1), (torch.bfloat16, 0.1, 1)]
)
def test_results_computed_from_copies_may_differ_by_rounding(dtype, noise, n):
    value = (copies + noise * torch.rand(256, 64)).to(dtype)
    assert n_copies_in(value, is_rounded=True) == n
    assert n_copies_in(torch.full((256, 64), float("inf")), is_rounded=True) == 1


class Ranker(nn.Module):
    """Encodes what it gets for each of ``n`` candidates."""

    def __init__(self, n=8, layer=None):
        super().__init__()
        two = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64, bias=False))
        self.n, self.encoder = n, layer or two

    def forward(self, x):
        return self.encoder(x.repeat_interleave(self.n, dim=0))


def test_products_of_copies_are_recorded_with_their_line():
    found = repeated_rows(logged(Ranker(), rows))
    assert (found.n_copies, found.shape, found.n_operators) == (8, (256, 64), 2)
    assert found.site.startswith("test_repeats.py:")
    assert found.total_s > 0


def test_shape_is_that_of_the_costliest():
    model = Ranker(8, nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 2048), nn.Linear(2048, 16)))
    log = logged(model, rows)
    assert repeated_rows(log).shape == max(log.calls, key=lambda call: call.seconds * ("addmm" in call.name)).out_shape


def test_results_of_copies_are_copies_up_to_rounding():
    class Rounded(Ranker):
        def forward(self, x):
            h = self.encoder(x.repeat(8, 1))
            return self.encoder(h + 1e-8 * torch.rand_like(h))

    assert repeated_rows(logged(Rounded(8, nn.Linear(64, 64)), rows)).n_operators == 2


def test_operators_behind_dropout_are_needed():
    model = Ranker(8, nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)))
    assert repeated_rows(logged(model, rows)).n_operators == 1


@pytest.mark.parametrize(
    ("layer", "x"),
    [(None, rows), (nn.Conv2d(3, 8, 3), images), (nn.Conv1d(10, 8, 3), words), (nn.Linear(32, 32), words)],
)
def test_operators_are_replayed_with_each_item_once(layer, x):
    model = Ranker(8, layer)
    log = logged(model, x)
    for work in without_repeats(log):
        before, after = (first_size(side) for side in (work.as_is, work.treated))
        assert before == 8 * after
    probe = probe_of(model)
    probe.answer(asked("without-repeats"), log, 300.0)
    (replayed,) = probe.record().results
    assert replayed.n_operators >= 1
    assert replayed.speedup is not None or replayed.is_negligible, replayed.reason


def first_size(bounds):
    """Return the first dimension of the first tensor that has several."""
    ((_, args, _),) = bounds
    return next(value.shape[0] for value in args if isinstance(value, TensorSpec) and len(value.shape) > 1)


def test_replayed_results_are_those_of_the_step():
    layer = nn.Linear(64, 64, bias=False)
    work = without_repeats(logged(Ranker(8, layer), rows))[0]
    function, _, _ = work.treated[0]
    assert torch.allclose(function(rows, layer.weight.T), layer(rows.repeat_interleave(8, dim=0)))


def test_attention_over_copies_is_found(monkeypatch):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            x = x.repeat(4, 1, 1, 1) * self.scale
            return F.scaled_dot_product_attention(x, x, x)

    (work,) = without_repeats(logged(Attention(), torch.rand(2, 4, 64, 16)))
    assert "scaled_dot_product" in work.calls[0].name
    monkeypatch.setattr(F, "scaled_dot_product_attention", partial(attend_to_others, F.scaled_dot_product_attention))
    assert without_repeats(logged(Attention(), torch.rand(2, 4, 64, 16))) == []


def attend_to_others(attend, query, key, value):
    return attend(query, torch.rand_like(key), value)


def test_copies_that_a_library_makes_are_not_the_users(monkeypatch):
    monkeypatch.setattr(calls, "is_users_call", lambda: False)
    assert repeated_rows(logged(Ranker(), rows)) is None


@pytest.mark.parametrize(
    ("change", "n"), [({"n_copies": 4}, None), ({"site": "model.py:1"}, None), ({"total_s": 0.5}, 0.5)]
)
def test_only_what_two_steps_have_in_common_counts(change, n):
    found = RepeatedRows(n_copies=8, shape=(256, 64), n_operators=2, total_s=1.0, site="model.py:3")
    both = in_both(found, msgspec.structs.replace(found, **change))
    assert (both.total_s if both is not None else None) == n
    assert in_both(found, None) is None


class Sometimes(nn.Module):
    """Uses a layer with copies of rows, and once without."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x.repeat(8, 1) * 1.0) + self.layer(torch.rand(8 * 32, 64) * 1.0)


def test_layer_that_gets_copies_only_sometimes_is_not_replayed():
    assert all("addmm" not in work.calls[0].name for work in without_repeats(logged(Sometimes(), rows)))


class Titles(nn.Module):
    """Encodes the titles that a batch shows: those of few articles, each several times."""

    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 32), nn.Linear(32, 32)
        self.encoder = nn.Sequential(nn.Conv1d(32, 32, 3), nn.GELU())

    def forward(self, titles):
        looked_up = self.words(titles)
        return self.encoder(self.layer(looked_up).transpose(1, 2))


def titles_of(articles):
    titles = torch.randint(50, (100, 12), generator=torch.Generator().manual_seed(1))
    return titles[articles]


shown = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7] + [0] * 20 + [1] * 10 + [5] * 5 + [6, 3, 7, 2, 2])
looked_up_once = torch.arange(48)


def test_items_that_are_looked_up_irregularly_are_found_with_the_line_that_does():
    log = logged(Titles(), titles_of(shown))
    found = repeated_rows(log)
    assert (found.n_copies, found.n_operators, found.is_regular) == (6, 2, False)
    line = inspect.getsourcelines(Titles.forward)[1] + 1
    assert found.site == f"test_repeats.py:{line}"
    assert {work.calls[0].name for work in without_repeats(log)} == {"aten::addmm", "aten::convolution"}


@pytest.mark.parametrize("articles", [looked_up_once, torch.cat([torch.arange(30), torch.arange(18)])])
def test_items_most_of_which_are_looked_up_once_are_not_found(articles):
    assert repeated_rows(logged(Titles(), titles_of(articles))) is None


def test_words_that_occur_several_times_are_not_items():
    indices = torch.randint(8, (512,), generator=torch.Generator().manual_seed(1))
    assert repeated_rows(logged(nn.Sequential(nn.Embedding(8, 64), nn.Linear(64, 64)), indices)) is None


def test_items_are_not_equal_behind_what_differs_for_each():
    class Placed(Titles):
        def forward(self, titles):
            return self.layer(self.words(titles) + torch.arange(len(titles))[:, None, None] / 100)

    assert repeated_rows(logged(Placed(), titles_of(shown))) is None


def test_two_steps_have_the_smaller_number_of_irregular_copies_in_common():
    found = RepeatedRows(n_copies=8, shape=(256, 64), n_operators=2, site="model.py:3", is_regular=False)
    assert in_both(found, msgspec.structs.replace(found, n_copies=5)).n_copies == 5
    assert in_both(found, msgspec.structs.replace(found, is_regular=True)) is None


def test_nothing_is_found_without_copies():
    log = logged(nn.Linear(64, 64), torch.rand(256, 64))
    assert repeated_rows(log) is None
    assert without_repeats(log) == []
