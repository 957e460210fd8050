"""Backward passes that compute zeros are found, with the line that no gradient gets through."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.nn import functional as F

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
