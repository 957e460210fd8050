"""Products of rows that are concatenated from copies, as in layers on pairs or on the edges of a graph."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

from lightning_perf.probes.replay.repeated_rows import in_both, repeated_rows, without_repeats

from .replaying import asked, logged, probe_of

N, WIDTH = 24, 32
chains = torch.rand(4, N, WIDTH)
nodes = torch.rand(4 * N, WIDTH)
edges = torch.arange(2 * 1600).reshape(2, -1) * 7 % len(nodes)


class Pairs(nn.Module):
    """A layer on all pairs of a chain's items."""

    def __init__(self, bias=True):
        super().__init__()
        self.layer = nn.Linear(2 * WIDTH, 8, bias=bias)

    def joined(self, x):
        left, right = x[:, :, None].expand(-1, -1, N, -1), x[:, None].expand(-1, N, -1, -1)
        return torch.cat([left, right], dim=-1)

    def forward(self, x):
        return self.layer(self.joined(x))


class CopiedPairs(Pairs):
    def joined(self, x):
        left, right = x[:, :, None].expand(-1, -1, N, -1), x[:, None].expand(-1, N, -1, -1)
        return torch.cat([left.contiguous(), right.contiguous()], dim=-1)


class Edges(Pairs):
    def joined(self, x):
        return torch.cat([x[edges[0]], x.index_select(0, edges[1])], -1)


class EdgesWithLengths(Edges):
    def __init__(self, n=1600):
        super().__init__()
        self.n = n
        self.layer = nn.Linear(2 * WIDTH + 1, 8)

    def joined(self, x):
        return torch.cat([x[edges[0, : self.n]], x[edges[1, : self.n]], torch.rand(self.n, 1)], -1)


CASES = [
    (Pairs(), chains, N),
    (Pairs(bias=False), chains, N),
    (CopiedPairs(), chains, N),
    (Edges(), nodes, 1600 // len(nodes)),
    (EdgesWithLengths(), nodes, 1600 * 65 // (2 * len(nodes) * 32 + 1600)),
]


@pytest.mark.parametrize(("model", "x", "n_copies"), CASES)
def test_rows_of_copies_are_recorded_with_their_line(model, x, n_copies):
    found = repeated_rows(logged(model, x))
    assert (found.n_copies, found.n_operators, found.are_joined) == (n_copies, 1, True)
    assert found.site.startswith("test_joined_rows.py:")


@pytest.mark.parametrize(("model", "x"), [(model, x) for model, x, _ in CASES])
def test_parts_are_replayed(model, x):
    log = logged(model, x)
    (work,) = without_repeats(log)
    product = "aten::addmm" if model.layer.bias is not None else "aten::mm"
    assert [call.name for call in work.calls] == [product, "aten::cat"]
    probe = probe_of(model)
    probe.answer(asked("without-repeats"), log, 300.0)
    (replayed,) = probe.record().results
    assert replayed.speedup is not None or replayed.is_negligible, replayed.reason


@pytest.mark.parametrize("bias", [True, False])
def test_sum_of_parts_is_the_result_of_the_step(bias):
    model = Pairs(bias)
    (work,) = without_repeats(logged(model, chains))
    layer = model.layer
    parts = (layer.weight.T, chains[:, :, None], chains[:, None])
    for ((function, _, _),) in (work.as_is, work.treated):
        assert torch.allclose(function(*([layer.bias] if bias else []), *parts), model(chains), atol=1e-6)


class Plain(Pairs):
    def joined(self, x):
        return torch.cat([x, torch.flip(x, (1,))], -1)


class PlainAsWell(Pairs):
    def forward(self, x):
        joined = self.joined(x)
        others = torch.cat([torch.rand(4, N, N, WIDTH), torch.rand(4, N, N, WIDTH)], -1)
        return self.layer(joined) + self.layer(others)


class PermutedAsWell(CopiedPairs):
    def forward(self, x):
        others = [torch.rand(4, WIDTH, N, N).permute(0, 2, 3, 1).contiguous() for _ in range(2)]
        return self.layer(self.joined(x)) + self.layer(torch.cat(others, -1))


class Flattened(Pairs):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2 * WIDTH * N, 8)

    def joined(self, x):
        return super().joined(x).flatten(2)


class Transposed(Pairs):
    def forward(self, x):
        return self.joined(x).flatten(0, 2).t() @ torch.rand(4 * N * N, 8) + self.layer.bias


class TransposedSquare(Pairs):
    def forward(self, x):
        few = x[0, :8]
        joined = torch.cat([few[torch.randperm(2 * WIDTH) % 8] for _ in range(2)], -1)
        return joined.t() @ torch.rand(2 * WIDTH, 8) + self.layer.bias


@pytest.mark.parametrize("model", [Plain(), Flattened(), Transposed(), TransposedSquare()])
def test_nothing_is_reported_when_rows_are_not_made_of_copies(model):
    assert repeated_rows(logged(model, chains)) is None


@pytest.mark.parametrize("model", [PlainAsWell(), PermutedAsWell()])
def test_equal_products_of_other_rows_are_told_apart(model):
    assert repeated_rows(logged(model, chains)).n_operators == 1


def test_parts_of_the_weight_are_no_parts_of_the_rows():
    class Split(Pairs):
        def forward(self, x):
            left, right = self.layer.weight.split(WIDTH, 1)
            return nn.functional.linear(self.joined(x), torch.cat([left * 2, right], 1))

    found = repeated_rows(logged(Split(), chains))
    assert (found.n_copies, found.n_operators) == (N, 1)


def test_joined_rows_are_confirmed_in_a_step_with_other_numbers_of_them():
    first, second = (repeated_rows(logged(EdgesWithLengths(n), nodes)) for n in (1600, 1200))
    assert first.n_copies > second.n_copies
    assert in_both(first, second).n_copies == second.n_copies
    assert in_both(first, msgspec.structs.replace(second, are_joined=False)) is None


def test_products_of_a_library_are_left_out(monkeypatch):
    monkeypatch.setattr("lightning_perf.probes.replay.calls.is_users_call", lambda: False)
    assert repeated_rows(logged(Pairs(), chains)) is None
