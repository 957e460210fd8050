"""Operators on operands that are made of smaller ones are found, and what is cheaper gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn import functional

from lightning_perf.probes.replay.cheaper import cheaper

from .test_cheaper import log_of

entries = nn.Parameter(torch.rand(4, 12, 12))
columns, diagonal = nn.Parameter(torch.rand(4, 12, 3)), nn.Parameter(1 + torch.rand(4, 12))
images, volumes = nn.Parameter(torch.rand(2, 3, 20, 24)), nn.Parameter(torch.rand(2, 1, 9, 10, 11))
window = torch.hann_window(7, periodic=False) + 0.1
kernel = torch.outer(window, window)
# Of steganalysis: rank 2, and each row adds up to 0.
high_pass = torch.tensor([[-1, 2, -2, 2, -1], [2, -6, 8, -6, 2], [-2, 8, -12, 8, -2], [2, -6, 8, -6, 2],
                          [-1, 2, -2, 2, -1.0]])  # fmt: skip
rows, target, source = torch.randint(20, (64,)), torch.rand(20, 8), nn.Parameter(torch.rand(64, 8))


def likelihood(covariance):
    return MultivariateNormal(torch.zeros(12), covariance).log_prob(torch.ones(4, 12)).sum()


def of_triangular():
    factor = entries.tril(-1) + torch.diag_embed(diagonal)
    likelihood(factor @ factor.mT).backward()


def of_few_columns():
    likelihood(columns @ columns.mT + torch.diag_embed(diagonal)).backward()


def of_full():
    likelihood(entries @ entries.mT + torch.eye(12)).backward()


def of_two():
    factor = entries.tril(-1) + torch.diag_embed(diagonal)
    product = factor @ (2 * factor).mT
    likelihood(product).backward()


def of_precision():
    factor = entries.tril(-1) + torch.diag_embed(diagonal)
    MultivariateNormal(torch.zeros(12), precision_matrix=factor @ factor.mT).log_prob(torch.ones(12)).sum().backward()


def of_penalized():
    factor = entries.tril(-1) + torch.diag_embed(diagonal)
    product = factor @ factor.mT
    (likelihood(product) + product.square().sum()).backward()


@pytest.mark.parametrize(("step", "size", "is_thin"), [(of_triangular, 12, 0), (of_few_columns, 3, 1)])
def test_a_known_factor_is_found(step, size, is_thin):
    log, found = log_of(step)
    assert (found.kind, found.shape, found.size, found.better) == ("factor", (4, 12, 12), size, is_thin)
    assert found.site.startswith("test_structured.py:")
    (work,) = cheaper(log)
    tensors = torch.rand(4, 12, size), torch.rand(4, 12)
    results = [function(*tensors[: len(args)]) for function, args, _ in (*work.as_is, *work.treated)]
    assert [result.shape[-1] for result in results] == [12, size]


@pytest.mark.parametrize("step", [of_full, of_two, of_precision, of_penalized])
def test_products_without_a_known_factor_or_with_another_use_are_left_alone(step):
    assert log_of(step)[1] is None


def test_a_factor_must_be_triangular_in_every_call():
    full = entries.detach() + 12 * torch.eye(12)
    triangular = full.tril()

    def step(*factors):
        sum(likelihood(each @ each.mT) for each in map(nn.Parameter, factors)).backward()

    assert log_of(lambda: step(triangular, triangular))[1].n_operators == 2
    assert log_of(lambda: step(triangular, full))[1] is None


def blurred(given, weight, padding=3):
    convolve = {4: functional.conv2d, 5: functional.conv3d}[given.dim()]
    return convolve(given, weight, padding=padding, groups=given.shape[1])


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        (images, kernel.expand(3, 1, 7, 7)),
        (images, torch.outer(window, -window[:5]).expand(3, 1, 7, 5)),
        (volumes, torch.ones(1, 1, 3, 3, 3)),
    ],
)
def test_outer_products_are_convolved_along_one_dimension_at_a_time(given, weight):
    log, found = log_of(lambda: blurred(given, weight, 1).sum().backward())
    assert (found.kind, found.shape) == ("kernel", weight.shape[2:])
    (work,) = cheaper(log)
    (_, (_, spec, *_), _), *_ = work.treated
    assert spec.shape == (weight.shape[0], 1, weight.shape[2], *(1 for _ in weight.shape[3:]))
    x, expected = given.detach(), blurred(given.detach(), weight, 1)
    sums = [weight.sum([i for i in range(2, weight.dim()) if i != dim], keepdim=True) for dim in range(2, weight.dim())]
    for (function, (spec, _, *rest), _), along in zip(work.treated, sums, strict=True):
        assert tuple(x.shape) == spec.shape
        x = function(x, along, *rest)
    total = weight.sum(list(range(2, weight.dim())), keepdim=True).flatten()[0]
    assert torch.allclose(x / total ** (len(sums) - 1), expected, atol=1e-4)


@pytest.mark.parametrize(
    "weight",
    [
        kernel.flip(0) + torch.eye(7),
        kernel[:3, :3],
        nn.Parameter(kernel.expand(3, 1, 7, 7).clone()),
        kernel - kernel.mean(),
        high_pass,
    ],
)
def test_other_kernels_are_left_alone(weight):
    assert log_of(lambda: blurred(images, weight.expand(3, 1, *weight.shape[-2:])).sum().backward())[1] is None


@pytest.mark.parametrize(
    ("reduce", "function"), [("sum", "index_add(0, index, x)"), ("mean", "index_add(0, index, x) / degree")]
)
@pytest.mark.parametrize("include_self", [True, False])
def test_rows_are_added_with_one_index_each(reduce, function, include_self):
    index = rows.unsqueeze(1).expand_as(source)
    options = {"reduce": reduce, "include_self": include_self}
    given = target if include_self else torch.zeros_like(target)

    def step():
        into = target if include_self else torch.zeros_like(target)
        into.scatter_reduce(0, index, source, **options).sum().backward()

    log, found = log_of(step)
    assert (found.kind, found.shape, found.size, found.function) == ("scatter", (64, 8), 20, function)
    (work,) = cheaper(log)
    results = [function(given, source, **named) for function, _, named in (*work.as_is, *work.treated)]
    assert torch.allclose(*results, atol=1e-5)
    for function, _, named in (*work.as_is, *work.treated):  # on another device
        assert function(given.to("meta"), source.to("meta"), **named).shape == target.shape


def test_sums_by_scatter_add_are_added_with_one_index_each():
    index = rows.unsqueeze(1).expand_as(source)
    assert log_of(lambda: target.scatter_add(0, index, source).sum().backward())[1].kind == "scatter"


@pytest.mark.parametrize(
    ("index", "reduce"),
    [
        (torch.randint(20, (64, 8)), "sum"),
        (rows[:20].unsqueeze(0).expand(64, 20)[:, :8], "sum"),
        (rows.unsqueeze(1).expand_as(source), "amax"),  # index_reduce, which does the same, is experimental
    ],
)
def test_other_scatters_are_left_alone(index, reduce):
    assert log_of(lambda: target.scatter_reduce(0, index, source, reduce).sum().backward())[1] is None


@pytest.mark.parametrize(
    "step",
    [
        lambda index: (2 * target).scatter_reduce(0, index, source, "mean", include_self=False),
        lambda index: torch.zeros(20, 12).scatter_add(0, index, source),
    ],
)
def test_scatters_that_leave_elements_as_they_are_are_left_alone(step):
    assert log_of(lambda: step(rows.unsqueeze(1).expand_as(source)).sum().backward())[1] is None
