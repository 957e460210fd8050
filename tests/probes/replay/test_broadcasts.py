"""Relations of all pairs that are computed by broadcasting are found in a step's operators, and replayed without it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_perf.probes.replay.broadcasts import broadcast_sum, distances, products, similarities, without_broadcast

from .replaying import asked, logged, probe_of

N, M, K = 64, 40, 48


class Pairs(nn.Module):
    """Relates the rows of a batch to one another, or to rows of its own."""

    def __init__(self, relate):
        super().__init__()
        self.first, self.rows, self.relate = nn.Linear(16, K), nn.Parameter(torch.randn(M, K)), relate

    def forward(self, x):
        return self.relate(self.first(x), self.rows)


def log_of(relate):
    return logged(Pairs(relate), torch.randn(N, 16))


def cosine(a, b):
    return F.cosine_similarity(a[:, None], a[None], dim=-1)


def as_batches(a, b):
    return (a.view(2, 32, 1, K) * a.view(2, 1, 32, K)).sum(-1)


def expanded(a, b):
    return (a[:, None].expand(-1, M, -1) * b.expand(N, -1, -1)).mean(-1)


def attended(a, b):
    return (torch.softmax(a @ b.T, -1)[:, :, None] * b[None]).sum(1)


@pytest.mark.parametrize(
    ("relate", "shape", "function", "rows"),
    [
        (lambda a, b: (a[:, None] * b[None]).sum(-1), (N, M, K), products, [(N, K), (M, K)]),
        (expanded, (N, M, K), products, [(N, K), (M, K)]),
        (lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1), (N, M, K), distances, [(N, K), (M, K)]),
        (lambda a, b: (a[:, None] - b[None]).norm(dim=-1), (N, M, K), distances, [(N, K), (M, K)]),
        (lambda a, b: F.pairwise_distance(a[:, None], b[None]), (N, M, K), distances, [(N, K), (M, K)]),
        (cosine, (N, N, K), similarities, [(N, K), (N, K)]),
        (attended, (N, M, K), products, [(N, M), (K, M)]),
        (as_batches, (2, 32, 32, K), products, [(2, 32, K), (2, 32, K)]),
    ],
    ids=["product", "expanded", "squares", "norm", "pairwise", "cosine", "weighted", "batches"],
)
def test_relation_of_all_pairs_is_found(relate, shape, function, rows):
    log = log_of(relate)
    found = broadcast_sum(log)
    assert (found.shape, found.n_bytes) == (shape, 4 * torch.Size(shape).numel())
    assert found.kind == function.__name__
    assert found.total_s > 0
    assert found.site.startswith("test_broadcasts.py:")
    (work,) = without_broadcast(log)
    ((treated, given, _),) = work.treated
    assert treated is function
    assert sorted(spec.shape for spec in given) == sorted(rows)
    assert all(spec.needs_grad for spec in given)


@pytest.mark.parametrize(
    "relate",
    [
        lambda a, b: (a[:, None] - b[None]).abs().sum(-1),
        lambda a, b: (a[:, None] + b[None]).tanh().sum(-1),
        lambda a, b: (a[:, None] - b[None]).sum(-1),
        lambda a, b: (a[:, None] - b[None]).pow(3).sum(-1),
        lambda a, b: (a[:, None] - b[None]).pow(2).pow(2).sum(-1),
        lambda a, b: (a[:, None] - b[None]).norm(p=1, dim=-1),
        lambda a, b: F.pairwise_distance(a[:, None], b[None], p=1),
        lambda a, b: (a[:, None] * b[None]).sum(),
        lambda a, b: (a[:, None] * b[None]).sum((0, 1)),
        lambda a, b: (a[:, None] * b[None]).amax(-1),
        lambda a, b: (a[:, None] * b[None]).transpose(0, 1).sum(-1),
        lambda a, b: (a[:, None] * a[None]).transpose(0, 1).sum(-1),
        lambda a, b: (a.view(2, 32, 1, K) * a.view(2, 1, 32, K)).flatten(0, 2).sum(-1),
        lambda a, b: ((a[:, None] * b[None]) / (a[:, None] - b[None])).sum(-1),
        lambda a, b: torch.div(a[:, None], b[None], rounding_mode="floor").sum(-1),
        lambda a, b: ((a > 0).long()[:, None] * (b > 0).long()[None]).sum(-1) * a.sum(),
        lambda a, b: (a[:, None] * (b > 0)[None]).sum(-1),
        lambda a, b: a[a[:, 0] > 1e9].sum(-1).sum() + a.sum(),
        lambda a, b: (a.repeat(30, 1) * b[0]).sum(-1),
        lambda a, b: (a[:8, None] * b[None]).sum(-1),
        lambda a, b: torch.einsum("nk,mk->nm", a, b),
    ],
    ids=[
        "absolute", "tanh", "difference", "cubes", "squared twice", "norm 1", "pairwise 1", "all", "two dims",
        "largest", "transposed", "transposed square", "flattened", "quotient", "floor", "integers", "mask", "empty",
        "weights", "small", "einsum",
    ],
)  # fmt: skip
def test_other_sums_are_left_alone(relate):
    assert broadcast_sum(log_of(relate)) is None


def used_elsewhere(a, b):
    difference = a[:, None] - b[None]
    return difference.square().sum(-1).unsqueeze(-1) * difference.tanh()


def called_like_another(a, b):
    whole = a.unsqueeze(1).repeat(1, M, 1)
    return (a[:, None] * b[None]).sum(-1) + sum((whole * whole).sum(-1) for _ in range(3))


@pytest.mark.parametrize("relate", [used_elsewhere, called_like_another])
def test_operators_that_others_need_are_left_alone(relate):
    assert broadcast_sum(log_of(relate)) is None


def test_norms_of_broadcast_tensors_count_as_well():
    (work,) = without_broadcast(log_of(cosine))
    names = sorted(call.name for call in work.calls)
    assert names == ["aten::div"] * 2 + ["aten::linalg_vector_norm"] * 2 + ["aten::mul", "aten::sum"]


def test_costliest_one_is_replayed():
    log = log_of(lambda a, b: (a[:, None] * b[None]).sum(-1).sum() + cosine(a, b).sum())
    for call in log.calls:
        call.ns = call.backward_ns = 1000  # similarities take more operators
    assert broadcast_sum(log).kind == "similarities"
    assert len(without_broadcast(log)) == 1


@pytest.mark.parametrize(
    ("function", "by_broadcasting"),
    [
        (products, lambda a, b: (a.unsqueeze(-2) * b.unsqueeze(-3)).sum(-1)),
        (distances, lambda a, b: ((a.unsqueeze(-2) - b.unsqueeze(-3)) ** 2).sum(-1)),
        (similarities, lambda a, b: F.cosine_similarity(a.unsqueeze(-2), b.unsqueeze(-3), dim=-1)),
    ],
)
def test_functions_compute_the_same(function, by_broadcasting):
    a, b = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    torch.testing.assert_close(function(a, b), by_broadcasting(a, b), rtol=1e-4, atol=1e-4)


def test_relation_is_replayed_without_broadcasting():
    model = Pairs(cosine)
    probe = probe_of(model)
    assert probe.answer(asked("without-broadcast"), logged(model, torch.randn(N, 16)), 1000.0)
    (result,) = probe.record().results
    assert result.n_operators == 1, result.reason
    assert result.seen_s > 0


class Ranks(nn.Module):
    """Relates the numbers of a batch of rows to one another."""

    def __init__(self, relate, n=256):
        super().__init__()
        self.score, self.relate, self.n = nn.Linear(16, 1), relate, n

    def forward(self, x):
        return self.relate(self.score(x).squeeze(-1), x[:, 0])


def risk_sets(score, times):
    at_risk = times[None] >= times[:, None]
    return score[None].expand(len(score), -1).masked_fill(~at_risk, float("-inf")).logsumexp(1)


def risk_sets_and_a_product(score, times):
    wide = score[:64, None] * torch.arange(1.0, 17.0)
    return risk_sets(score, times).sum() + (wide[:, None] * wide[None]).sum(-1).sum()


@pytest.mark.parametrize("relate", [risk_sets, risk_sets_and_a_product])
def test_comparisons_of_all_pairs_are_found_with_their_time(relate):
    log = logged(Ranks(relate), torch.randn(256, 16))
    for call in log.calls:
        call.ns, call.backward_ns = 1000 * call.n, 0
    found = broadcast_sum(log)
    assert found.total_s >= 4e-6  # of at least so many operators
    assert (found.kind, found.shape) == ("comparisons", (256, 256))
    assert found.site == f"test_broadcasts.py:{risk_sets.__code__.co_firstlineno + 1}"
    assert found.total_s > 0


@pytest.mark.parametrize(
    "relate",
    [
        lambda score, times: (score[:, None] > torch.cat([times, times])) * score[:, None],  # not square
        lambda score, times: (score[:, None] - times[None]).exp(),  # not compared
        lambda score, times: (score[:, None] == times[None]) * score,  # not in order
        lambda score, times: (score[:, None] @ times[None]).relu(),  # a product
        lambda score, times: (score[:, None] @ times[None]).masked_fill(times[None] > times[:, None], 0),
        lambda score, times: (score[:64, None] > score[None, :64]) * score[:64],  # small
    ],
)
def test_tensors_that_are_needed_anyway_do_not_count(relate):
    log = logged(Ranks(relate), torch.randn(256, 16))
    for call in log.calls:
        call.ns, call.backward_ns = 1000 * call.n, 0
    found = broadcast_sum(log)
    assert found is None or found.total_s < 3e-6  # the comparison itself
