"""Backward passes that compute zeros are found, with the line that no gradient gets through."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from lightning_perf.probes.sampled_steps.zero_gradients import ZeroGradients
from tests.probes.sampled_steps.test_known_results import WIDTH, N, Net, follow


def line_of(step, text):
    lines, first = inspect.getsourcelines(step)
    return f"test_zero_gradients.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def signed(net, x):
    hidden = net.trained(x).relu()
    return net.norm(hidden.sign()).square().sum()  # zeros


def rounded(net, x):
    return net.norm(torch.round(net.trained(x).tanh(), decimals=1)).square().sum()  # zeros


def twice_differentiated(net, x):
    x.requires_grad_(True)
    clean = net.trained(x).relu().square().mean()
    (gradient,) = torch.autograd.grad(clean, x, create_graph=True)
    return clean + net.norm(x + gradient.sign()).square().mean()  # zeros


@pytest.mark.parametrize(("step", "n"), [(signed, 3), (rounded, 3), (twice_differentiated, 6)])
def test_passes_of_zeros_are_found_with_their_line(step, n):
    found = follow(step)["zeros"]
    assert found.n_operators == n
    assert found.site == line_of(step, "# zeros")
    assert 0 < found.backward_part < 1
    assert found.total_s > 0


def test_only_what_follows_the_line_counts():
    parts = [follow(lambda net, x, depth=depth: deep(net, x, depth))["zeros"].backward_part for depth in (1, 6)]
    assert parts[0] < parts[1]


def deep(net, x, depth):
    for _ in range(depth):
        x = net.trained(x).tanh()
    return x.round().sum() + net.norm(x.detach()).square().sum()


def two_functions(net, x):
    cheap = net.trained.bias.round().square().sum()
    return cheap + net.trained(net.trained(x).tanh()).floor().square().sum()  # zeros


def test_line_is_that_of_the_function_that_costs_most():
    assert follow(two_functions)["zeros"].site == line_of(two_functions, "# zeros")


@pytest.mark.parametrize(
    "step",
    [
        lambda net, x: net.trained(x).relu().sum(),
        lambda net, x: net.norm(x).square().sum() + 0.0 * net.trained(x).square().sum(),  # a weight that may grow
        lambda net, x: net.norm(x).sum() + net.trained(x).mul(net.trained.weight.detach()[0] * 0).sum(),  # so may this
        lambda net, x: (net.trained(x) * torch.eye(N, WIDTH)).sum(),  # most gradients are zeros, not all
        lambda net, x: net.trained(x)[:, :1].sum(),  # zeros that others are written to
        lambda net, x: F.embedding(torch.zeros(N, dtype=torch.long), net.trained.weight).sum(),
        lambda net, x: net.trained(x).detach().sign().sum() + net.norm(x).sum(),
        lambda net, x: (net.trained(x) + (net.trained(x).sign() - net.trained(x)).detach()).sum(),  # straight-through
        lambda net, x: (net.trained(x) * net.trained(x).new_zeros(1).requires_grad_()).sum() + net.norm(x).sum(),
    ],
    ids=["relu", "weight", "layer", "mask", "slice", "embedding", "detached", "straight-through", "gate"],
)
def test_other_passes_are_not(step):
    found = follow(step)
    assert "zeros" not in found


class Named(torch.autograd.Function):
    """A function of the user's that keeps names in its node, one of them where torch's nodes keep a parameter."""

    @staticmethod
    def forward(ctx, x):
        ctx.name, ctx.variable = "sign", "x"
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_functions_of_the_users_may_keep_anything_in_their_nodes():
    assert "zeros" not in follow(lambda net, x: Named.apply(net.trained(x)).square().sum())


def test_gradients_are_not_read_where_operators_are_not_timed():
    assert "zeros" not in follow(signed, is_timed=False)


def test_parameters_get_the_gradients_that_they_get_without_the_watch():
    torch.manual_seed(1)
    net, x = Net(signed), torch.randn(N, WIDTH)
    follow(signed, net, x)
    watched = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad()
    signed(net, x).backward()
    plain = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    assert len(watched) == len(plain) > 3
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))


ZEROS, OTHERS = torch.zeros(100), torch.ones(100)
LAST = torch.zeros(100).index_fill(0, torch.tensor([99]), 1.0)


def watched(*operators):
    """Watch operators, given as name, arguments, result, node, its name and owner; return what was found."""
    found = ZeroGradients()
    for name, given, out, *node in operators:
        found.add(SimpleNamespace(_schema=SimpleNamespace(name=name)), given, out, 10, *node)
    found.node_ends()
    return found


SIGN = (0, 9), "SignBackward0", "sign"
FIRST = "aten::zeros_like", (OTHERS,), ZEROS, *SIGN


@pytest.mark.parametrize(
    "results",
    [(torch.zeros(9), OTHERS), LAST, LAST.view(2, 50).t(), (), torch.zeros(3, dtype=torch.long)],
    ids=["two", "last", "transposed", "none", "integers"],
)
def test_node_with_another_result_does_not_count(results):
    found = watched(FIRST, ("aten::mm", (ZEROS,), results, (0, 1), "MmBackward0", "product"))
    assert (found.owners, found.weights) == ({"sign"}, {"sign": 10})


def test_node_that_gets_other_gradients_does_not_count():
    behind = "aten::mm", (OTHERS,), torch.zeros(9), (0, 1), "MmBackward0", "product"
    assert watched(FIRST, behind).owners == {"sign"}
    assert watched(behind).owners == set()


def test_what_a_node_reads_again_is_no_result():
    inner, zeros, node = torch.ones(8), torch.zeros(8), ((0, 1), "PowBackward0", "power")
    found = watched(FIRST, ("aten::mul", (ZEROS,), inner, *node), ("aten::mul", (inner,), zeros, *node))
    assert (found.owners, found.weights) == ({"sign", "power"}, {"sign": 30})


@pytest.mark.parametrize(("function", "is_found"), [("aten::add", True), ("aten::sub", False)])
def test_sum_with_the_gradients_of_another_use_is_no_result(function, is_found):
    own, total, node = torch.zeros(8), torch.ones(8), ((0, 1), "MmBackward0", "product")
    found = watched(FIRST, ("aten::mm", (ZEROS,), own, *node), (function, (own, OTHERS), total, *node))
    assert found.weights == {"sign": 30 if is_found else 10}


def test_what_follows_counts_for_the_function_that_it_is_from():
    zeros, behind = torch.zeros(8), torch.zeros(8)
    second = "aten::zeros_like", (OTHERS,), zeros, (0, 8), "RoundBackward1", "round"
    found = watched(FIRST, second, ("aten::mm", (zeros, OTHERS), behind, (0, 2), "MmBackward0", "product"))
    assert found.weights == {"sign": 10, "round": 20}


def test_storage_that_is_written_to_again_holds_no_zeros():
    zeros, behind = torch.zeros(8), torch.zeros(8)
    first = "aten::zeros_like", (OTHERS,), zeros, *SIGN
    product = "aten::mm", (zeros,), behind, (0, 2), "MmBackward0", "product"
    assert watched(first, product).owners == {"sign", "product"}
    again = "aten::copy_", (OTHERS,), zeros, (0, 3), "CopyBackwards", None
    assert watched(first, again, product).owners == {"sign"}
    assert watched(first, (*product[:3], (1, 2), *product[4:])).owners == {"sign"}  # in another pass
