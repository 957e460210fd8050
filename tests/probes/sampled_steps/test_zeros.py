"""Matrices of mostly zeros are found in products and decompositions, and replayed without the zeros."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_perf.probes.replay.zero_operands import without_zeros, zero_operand
from lightning_perf.probes.sampled_steps.zeros import zeros_in
from tests.probes.replay.replaying import asked, logged, probe_of

N, K = 64, 96
mm, bmm, addmm, cholesky = (f"aten::{name}" for name in ("mm", "bmm", "addmm", "linalg_cholesky_ex"))
dense = torch.rand(K, K)
diagonal = torch.diag(torch.rand(K) + 0.5)
one_hot = F.one_hot(torch.arange(N) % K, K).float()
sparse = (torch.rand(K, K, generator=torch.Generator().manual_seed(0)) < 0.02).float()


@pytest.mark.parametrize(
    ("name", "args", "place", "kind"),
    [
        (mm, (diagonal, dense), 0, "diagonal"),
        (mm, (dense, diagonal), 1, "diagonal"),
        (bmm, (diagonal.expand(3, K, K), dense.expand(3, K, K)), 0, "diagonal"),
        (addmm, (dense[0], one_hot, dense), 1, "one-hot"),
        (mm, (sparse, dense), 0, "sparse"),
        (cholesky, (diagonal,), 0, "diagonal"),
        (cholesky, (torch.diag_embed(torch.rand(1024, 20) + 0.5),), 0, "diagonal"),  # each 400th element is nonzero
        (cholesky, (torch.diag(torch.rand(1025) + 0.5),), 0, "diagonal"),  # each 1026th
    ],
)
def test_matrices_of_mostly_zeros_are_found(name, args, place, kind):
    found = zeros_in(name, args)
    assert (found.place, found.kind) == (place, kind)
    assert 0 < found.fraction <= 0.05


@pytest.mark.parametrize(
    ("name", "args"),
    [
        (mm, (dense, dense)),
        (mm, (torch.zeros(K, K), dense)),  # nothing to select
        (mm, (diagonal[:32, :32], dense)),  # small
        (mm, (torch.tril(dense), dense)),
        (cholesky, (sparse,)),
        ("aten::add", (diagonal, dense)),
        (mm, (diagonal.to_sparse_csr(), dense)),
        (mm, (diagonal.to("meta"), dense)),
    ],
)
def test_others_are_not(name, args):
    assert zeros_in(name, args) is None


class Layer(nn.Module):
    """Multiplies its table by a matrix made from the batch."""

    def __init__(self, multiply):
        super().__init__()
        self.table, self.multiply = nn.Parameter(torch.rand(K, K)), multiply

    def forward(self, x):
        return self.multiply(x, self.table)


def select(x, table):
    return F.one_hot(x.argmax(-1), K).float() @ table


def scale(x, table):
    return torch.diag(x[0]) @ table


def scale_right(x, table):
    return table @ torch.diag(x[0])


def pass_on(x, table):
    return sparse @ table


def pass_on_right(x, table):
    return table @ sparse


def pass_on_by_edges(x, table):
    rows, columns = sparse.nonzero(as_tuple=True)
    adjacency = torch.zeros(K, K)
    adjacency[rows, columns] = 1.0
    return (adjacency / 2) @ table


def pass_on_made_dense(x, table):
    return torch.sparse_coo_tensor(sparse.nonzero().T, torch.ones(int(sparse.sum())), (K, K)).to_dense() @ table


def density(x, table):
    scale = torch.linalg.cholesky(torch.diag_embed(F.softplus(x @ table)))
    return torch.linalg.solve_triangular(scale, x[..., None], upper=False)


@pytest.mark.parametrize(
    ("multiply", "kind"),
    [(select, "one-hot"), (scale, "diagonal"), (scale_right, "diagonal"), (pass_on, "sparse"),
     (pass_on_right, "sparse"), (pass_on_by_edges, "sparse"), (pass_on_made_dense, "sparse"), (density, "diagonal")],
)  # fmt: skip
def test_operators_are_replayed_without_zeros(multiply, kind):
    model = Layer(multiply)
    log = logged(model, torch.rand(N, K))
    found = zero_operand(log)
    assert found.kind == kind
    assert found.site.startswith("test_zeros.py:")
    assert found.total_s > 0
    assert without_zeros(log)
    probe = probe_of(model)
    probe.answer(asked("without-zeros"), log, 1000.0)
    (replayed,) = probe.record().results
    assert 1 <= replayed.n_operators <= len(without_zeros(log))
    assert replayed.speedup is not None or replayed.is_negligible, replayed.reason


def test_zeros_of_a_trained_parameter_are_kept():
    layer = nn.Linear(K, K, bias=False)
    nn.init.eye_(layer.weight)
    assert zero_operand(logged(layer, torch.rand(N, K))) is None


def test_results_without_zeros_are_the_same():
    for matrix, is_left in ((diagonal, True), (diagonal, False)):
        layer = Layer(lambda x, table, a=matrix, left=is_left: a @ table if left else table @ a)
        function, _, _ = without_zeros(logged(layer, torch.rand(N, K)))[0].treated[0]
        assert torch.allclose(function(matrix.diagonal(), layer.table), layer(None))


def test_rows_are_selected_and_a_bias_is_added():
    layer = Layer(lambda x, table: torch.addmm(table[0], one_hot, table))
    function, given, _ = without_zeros(logged(layer, torch.rand(N, K)))[0].treated[0]
    assert len(given) == 2
    rows = function.args[0]
    assert torch.allclose(function(layer.table, layer.table[0]), layer.table[rows] + layer.table[0])


def test_sparse_matrix_in_place_of_a_dense_one_has_as_many_elements():
    work = without_zeros(logged(Layer(pass_on), torch.rand(N, K)))[0]
    matrix = work.treated[0][0].args[0]
    assert matrix.shape == sparse.shape
    assert matrix._nnz() == pytest.approx(int(sparse.sum()), rel=0.02)


def straight_through(x, table):
    scores = x @ table
    return (F.one_hot(scores.argmax(-1), K) + scores - scores.detach()) @ table


def sparse_of_the_batch(x, table):
    return (x * (torch.rand(N, K) < 0.02)) @ table


def masked(x, table):
    a = x.T @ x.flip(0)
    a[a < a.flatten().quantile(0.98)] = 0
    return a.detach() @ table


def sometimes(x, table):
    return (one_hot @ table + x @ table).sum()


@pytest.mark.parametrize("multiply", [straight_through, sparse_of_the_batch, masked, sometimes])
def test_zeros_that_cannot_be_left_out_are_not_found(multiply):
    assert zero_operand(logged(Layer(multiply), torch.rand(N, K))) is None


@pytest.mark.parametrize(("batch", "kind"), [(sparse, "sparse"), (sparse[: K // 2].clone(), None)])
def test_square_matrices_of_the_batch_are_graphs_and_others_are_features(batch, kind):
    found = zero_operand(logged(Layer(lambda x, table: x @ table), batch))
    assert (found.kind if found is not None else None) == kind


def test_nothing_is_found_without_zeros():
    log = logged(nn.Linear(K, K), torch.rand(N, K))
    assert zero_operand(log) is None
    assert without_zeros(log) == []
