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


def weightless(net, x):
    auxiliary = F.gelu(net.trained(x)).square().mean()
    return net.norm(x).square().sum() + 0.0 * auxiliary  # zeros


def twice_differentiated(net, x):
    x.requires_grad_(True)
    clean = net.trained(x).relu().square().mean()
    (gradient,) = torch.autograd.grad(clean, x, create_graph=True)
    return clean + net.norm(x + gradient.sign()).square().mean()  # zeros


@pytest.mark.parametrize(("step", "n"), [(signed, 3), (weightless, 5), (twice_differentiated, 6)])
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


@pytest.mark.parametrize(
    "step",
    [
        lambda net, x: net.trained(x).relu().sum(),
        lambda net, x: (net.trained(x) * torch.eye(N, WIDTH)).sum(),  # most gradients are zeros, not all
        lambda net, x: net.trained(x)[:, :1].sum(),  # zeros that others are written to
        lambda net, x: F.embedding(torch.zeros(N, dtype=torch.long), net.trained.weight).sum(),
        lambda net, x: net.trained(x).detach().sign().sum() + net.norm(x).sum(),
        lambda net, x: (net.trained(x) + (net.trained(x).sign() - net.trained(x)).detach()).sum(),  # straight-through
        lambda net, x: (net.trained(x) * net.trained(x).new_zeros(1).requires_grad_()).sum() + net.norm(x).sum(),
    ],
    ids=["relu", "mask", "slice", "embedding", "detached", "straight-through", "gate"],
)
def test_other_passes_are_not(step):
    found = follow(step)
    assert "zeros" not in found or found["zeros"].backward_part < 0.4


def test_gradients_are_not_read_where_operators_are_not_timed():
    assert "zeros" not in follow(signed, is_timed=False)


def test_parameters_get_the_gradients_that_they_get_without_the_watch():
    torch.manual_seed(1)
    net, x = Net(weightless), torch.randn(N, WIDTH)
    follow(weightless, net, x)
    watched = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad()
    weightless(net, x).backward()
    plain = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    assert len(watched) == len(plain) > 2
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))


ZEROS, OTHERS = torch.zeros(100), torch.ones(100)
LAST = torch.zeros(100).index_fill(0, torch.tensor([99]), 1.0)


def watched(*operators):
    """Watch operators, given as name, arguments, result, node and owner; return what was found."""
    found = ZeroGradients()
    for name, given, out, node, owner in operators:
        found.add(SimpleNamespace(_schema=SimpleNamespace(name=name)), given, out, 10, node, owner)
    found.node_ends()
    return found


@pytest.mark.parametrize(
    "results", [(ZEROS, OTHERS), LAST, LAST.view(2, 50).t(), torch.zeros(0), (), torch.zeros(3, dtype=torch.long)]
)
def test_node_with_another_result_does_not_count(results):
    assert watched(("aten::mm", (OTHERS,), results, (0, 1), "owner")).weight == 0


def test_what_a_node_reads_again_is_no_result():
    inner, zeros = torch.ones(8), torch.zeros(8)
    node = (0, 1), "owner"
    found = watched(("aten::mul", (OTHERS,), inner, *node), ("aten::mul", (inner,), zeros, *node))
    assert (found.weight, found.owners, found.source) == (20, {"owner"}, "owner")


def test_sum_with_the_gradients_of_another_use_is_no_result():
    own, total = torch.zeros(8), torch.ones(8)
    node = (0, 1), "owner"
    found = watched(("aten::mm", (OTHERS,), own, *node), ("aten::add", (own, OTHERS), total, *node))
    assert found.weight == 20
    found = watched(("aten::mm", (OTHERS,), own, *node), ("aten::sub", (own, OTHERS), total, *node))
    assert found.weight == 0


def test_source_gets_other_gradients_than_zeros():
    zeros, behind = torch.zeros(8), torch.zeros(8)
    first = "aten::mul", (OTHERS,), zeros, (0, 3)
    second = "aten::mm", (zeros, OTHERS), behind, (0, 2), "second"
    assert watched((*first, "first"), second).source == "first"
    assert watched((*first, None), second).source is None  # which operator it is was not seen
    overwritten = "aten::copy_", (OTHERS,), zeros.fill_(1.0), (0, 3), None
    assert watched(overwritten, second).source == "second"


def test_storages_of_an_earlier_pass_are_forgotten():
    zeros, behind = torch.zeros(8), torch.zeros(8)
    first = "aten::mul", (OTHERS,), zeros, (0, 3), None
    assert watched(first, ("aten::mm", (zeros,), behind, (1, 2), "second")).source == "second"
