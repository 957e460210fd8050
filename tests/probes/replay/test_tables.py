"""Gradients and updates of embedding tables are replayed dense and sparse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.replay.compare import HostWatch
from lightning_perf.probes.replay.tables import Table, TableItem, tables_in

from .replaying import asked, logged, probe_of

ROWS, WIDTH, N = 50_000, 16, 32


class Recommender(nn.Module):
    """Two tables of one shape, each looked up twice, and a layer."""

    def __init__(self, rows=ROWS):
        super().__init__()
        self.users, self.items = nn.Embedding(rows, WIDTH), nn.Embedding(rows, WIDTH)
        self.layer = nn.Linear(WIDTH, 1)

    def forward(self, index):
        looked_up = [table(each) for table in (self.users, self.items) for each in (index, index + 1)]
        return self.layer(sum(looked_up))


def log_of(model):
    return logged(model, torch.arange(N))


def test_tables_are_found_with_their_lookups():
    assert tables_in(log_of(Recommender())) == [Table((ROWS, WIDTH), 2, 2 * N)]


@pytest.mark.parametrize(
    ("options", "found"),
    [({"mode": "sum"}, [Table((ROWS, WIDTH), 1, N, 4)]), ({"mode": "max"}, []), ({"mode": "mean", "sparse": True}, [])],
)
def test_tables_of_bags_are_found_if_their_dense_gradients_could_be_sparse(options, found):
    table = nn.EmbeddingBag(ROWS, WIDTH, **options)
    assert tables_in(logged(nn.Sequential(table), torch.arange(N).reshape(4, -1))) == found


def test_no_table_is_found_that_gets_sparse_gradients_already():
    assert tables_in(logged(nn.Embedding(ROWS, WIDTH, sparse=True), torch.arange(N))) == []


def test_no_table_is_found_that_is_not_trained():
    model = Recommender()
    model.users.requires_grad_(False)
    model.items.requires_grad_(False)
    assert tables_in(log_of(model)) == []


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_sparse_updates_are_compared_with_dense_ones(kind):
    model = Recommender()
    before = [each.detach().clone() for each in model.parameters()]
    log = log_of(model)
    probe = probe_of(model, kind(model.parameters(), lr=0.1))
    probe.answer(asked("sparse-embeddings"), log, 1000.0)
    (replayed,) = probe.record().results
    assert replayed.n_operators == 1
    assert replayed.speedup is not None, replayed.reason
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("n_bags", [0, 4])
@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.SGD])
def test_both_sides_update_the_rows_alike(kind, n_bags):
    model = Recommender(100)
    item = TableItem(Table((100, WIDTH), 1, N, n_bags), kind(model.parameters(), lr=0.1))
    for is_treated, side in item._sides.items():
        assert len(item._looked_up(side, is_treated)) == (n_bags or N)
        with torch.no_grad():
            side.table.fill_(0.5)
        item._generator.manual_seed(3)
        item.run(is_treated, HostWatch(now_ns))
    dense, sparse = (side.table for side in item._sides.values())
    assert not torch.equal(dense, torch.full_like(dense, 0.5))
    assert torch.allclose(dense, sparse, atol=1e-6)


def test_each_run_looks_up_other_rows_without_drawing_from_the_global_generator():
    item = TableItem(Table((ROWS, WIDTH), 1, N), torch.optim.SGD(Recommender().parameters(), lr=0.1))
    side, state = item._sides[True], torch.get_rng_state()
    with torch.no_grad():
        side.table.fill_(0.5)
    changed = []
    for _ in range(2):
        item.run(True, HostWatch(now_ns))
        changed.append(int((side.table != 0.5).any(1).sum()))
    assert N - 3 < changed[0] <= N
    assert changed[1] > 2 * N - 6
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum"),
        (torch.optim.RMSprop, "RMSprop .* has no sparse variant"),
    ],
)
def test_what_cannot_be_replayed_is_refused(optimizer, reason):
    with pytest.raises(ValueError, match=reason):
        TableItem(Table((ROWS, WIDTH), 1, N), optimizer(Recommender().parameters()))


def test_a_part_of_a_large_table_stands_for_all_of_its_rows():
    optimizer = torch.optim.SGD(Recommender().parameters(), lr=0.1)
    item = TableItem(Table((ROWS, WIDTH), 2, N), optimizer, 10_000 * WIDTH, 40_000 * WIDTH)
    assert [side.table.shape for side in item._sides.values()] == [(10_000, WIDTH), (40_000, WIDTH)]
    assert [side.n_lookups for side in item._sides.values()] == [N * 10_000 // ROWS, N]
    assert item.weight == 10.0
    assert item.treated_weight == pytest.approx(2.0, rel=0.01)


def test_sparse_updates_count_more_when_a_part_of_the_table_has_fewer_rows_to_look_up():
    optimizer = torch.optim.SGD(Recommender().parameters(), lr=0.1)
    item = TableItem(Table((ROWS, WIDTH), 1, 20_000), optimizer, n_sparse_elements=10_000 * WIDTH)
    assert item._sides[True].table.shape == (40_000, WIDTH)  # twice as many rows as lookups
    assert item.treated_weight == pytest.approx(50_000 * (1 - math.exp(-0.4)) / (40_000 * (1 - math.exp(-0.5))))


def test_lookups_are_of_rows_when_an_embedding_has_the_shape_of_a_bag():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.bag = nn.Embedding(ROWS, WIDTH), nn.EmbeddingBag(ROWS, WIDTH, mode="sum")

        def forward(self, x):
            return self.rows(x).sum(1) + self.bag(x)

    (table,) = tables_in(logged(Mixed(), torch.arange(N).reshape(4, -1)))
    assert table.n_bags == 0
