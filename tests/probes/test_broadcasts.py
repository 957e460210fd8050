"""Sums over broadcast products are found in a step's operators, and replayed as matrix multiplications."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_perf.probes.replay.broadcasts import largest_broadcast, matrix_multiplications

from .replay.replaying import asked, logged, probe_of

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


@pytest.mark.parametrize(
    ("relate", "shape", "left", "right"),
    [
        (lambda a, b: (a[:, None] * b[None]).sum(-1), (N, M, K), (N, K), (K, M)),
        (lambda a, b: (a.unsqueeze(1).expand(-1, M, -1) * b.expand(N, -1, -1)).mean(-1), (N, M, K), (N, K), (K, M)),
        (lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1), (N, M, K), (N, K), (K, M)),
        (lambda a, b: (a[:, None] - b[None]).norm(dim=-1), (N, M, K), (N, K), (K, M)),
        (lambda a, b: F.pairwise_distance(a[:, None], b[None]), (N, M, K), (N, K), (K, M)),
        (lambda a, b: F.cosine_similarity(a[:, None], a[None], dim=-1), (N, N, K), (N, K), (K, N)),
        (lambda a, b: (torch.softmax(a @ b.T, -1)[:, :, None] * b[None]).sum(1), (N, M, K), (N, M), (M, K)),
        (lambda a, b: (a.view(2, 32, 1, K) * a.view(2, 1, 32, K)).sum(-1), (2, 32, 32, K), (2, 32, K), (2, K, 32)),
    ],
    ids=["product", "expanded", "squares", "norm", "pairwise", "cosine", "weighted", "batches"],
)
def test_sum_over_a_broadcast_product_is_a_matrix_product(relate, shape, left, right):
    log = log_of(relate)
    found = largest_broadcast(log)
    assert found.shape == shape
    assert found.n_bytes == 4 * torch.Size(shape).numel()
    assert found.total_s > 0
    assert found.site.startswith("test_broadcasts.py:")
    ((function, args, _),) = matrix_multiplications(log)[0].treated
    assert function is torch.matmul
    swapped = [(*each[:-2], each[-1], each[-2]) for each in (right, left)]
    assert [spec.shape for spec in args] in ([left, right], swapped)
    assert all(spec.needs_grad for spec in args)


@pytest.mark.parametrize(
    "relate",
    [
        lambda a, b: (a[:, None] - b[None]).abs().sum(-1),
        lambda a, b: (a[:, None] + b[None]).tanh().sum(-1),
        lambda a, b: (a[:, None] - b[None]).pow(3).sum(-1),
        lambda a, b: (a[:, None] * b[None]).sum(),
        lambda a, b: (a[:, None] * b[None]).amax(-1),
        lambda a, b: ((a[:, None] * b[None]) / (a[:, None] - b[None])).sum(-1),
        lambda a, b: (a.repeat(30, 1) * b[0]).sum(-1),
        lambda a, b: (a[:8, None] * b[None]).sum(-1),
        lambda a, b: torch.einsum("nk,mk->nm", a, b),
        lambda a, b: F.linear(a, b),
    ],
    ids=["absolute", "tanh", "cubes", "all", "largest", "quotient", "weights", "small", "einsum", "linear"],
)
def test_other_sums_are_left_alone(relate):
    assert largest_broadcast(log_of(relate)) is None


def test_norms_of_broadcast_tensors_count_as_well():
    (work,) = matrix_multiplications(log_of(lambda a, b: F.cosine_similarity(a[:, None], a[None], dim=-1)))
    names = sorted(call.name for call in work.calls)
    assert names == ["aten::div"] * 2 + ["aten::linalg_vector_norm"] * 2 + ["aten::mul", "aten::sum"]


def test_matrix_product_is_replayed_in_place_of_the_sum():
    model = Pairs(lambda a, b: F.cosine_similarity(a[:, None], a[None], dim=-1))
    probe = probe_of(model)
    assert probe.answer(asked("matrix-multiplication"), logged(model, torch.randn(N, 16)), 1000.0)
    (result,) = probe.record().results
    assert result.n_operators == 1, result.reason
    assert result.seen_s > 0
