"""Functions of torch that are written out in several operators are found, and replayed as one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_perf.probes.replay import written_out
from lightning_perf.probes.replay.cheaper import cheaper

from .test_cheaper import log_of

x = torch.rand(8, 16, 32)
images = torch.rand(4, 3, 12, 12)
scale, shift = nn.Parameter(torch.rand(32)), nn.Parameter(torch.rand(32))
kernel = nn.Parameter(torch.rand(5, 27))
first, second = nn.Linear(32, 32), nn.Linear(32, 32)


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def exact_gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def norm(x):
    return scale * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + shift


def norm_by_variance(x):
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-6) * scale + shift


def rms_norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale


def softmax(x):
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


def found_in(function, given=x):
    """Return what is found in a step that trains through a function."""
    given = given.clone().requires_grad_()
    return log_of(lambda: function(given * 1.5).cos().sum().backward())


@pytest.mark.parametrize(
    ("function", "name", "n"),
    [
        (gelu, 'F.gelu(x, approximate="tanh")', 8),
        (exact_gelu, "F.gelu(x)", 5),
        (lambda x: x * torch.sigmoid(x), "F.silu(x)", 2),
        (lambda x: x * torch.tanh(functional.softplus(x)), "F.mish(x)", 3),
        (norm, "F.layer_norm(x, x.shape[-1:], weight, bias)", 7),
        (norm_by_variance, "F.layer_norm(x, x.shape[-1:], weight, bias)", 8),
        (rms_norm, "F.rms_norm(x, x.shape[-1:], weight)", 6),
        (softmax, "F.softmax(x, -1)", 3),
        (lambda x: torch.log(softmax(x)), "F.log_softmax(x, -1)", 4),
    ],
)
def test_functions_are_found_with_all_of_their_operators(function, name, n, monkeypatch):
    monkeypatch.setattr(written_out, "_LEAST_PART", 0.0)  # another operator may be interrupted
    log, found = found_in(function)
    assert (found.kind, found.function, found.site.split(":")[0]) == ("function", name, "test_written_out.py")
    (work,) = cheaper(log)
    assert sum(call.n for call in work.calls) == n


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.sigmoid(x.flip(0)),  # of another tensor
        lambda x: x * torch.sigmoid(1.7 * x),
        lambda x: (parts := first(x).chunk(2, -1))[0] * torch.sigmoid(parts[1]),
        lambda x: first(x) * torch.sigmoid(second(x)),
        lambda x: x[..., :16] * torch.sigmoid(x[..., 16:]),
        lambda x: torch.tanh(x),
        lambda x: (x - x.mean(0, keepdim=True)) / (x.std(0, keepdim=True) + 1e-6),  # not over the last dimension
        lambda x: torch.exp(x) / torch.exp(x).sum(),
        lambda x: (s := torch.sigmoid(x)) * x + s.flip(0),  # needed elsewhere
        functional.gelu,
        functional.silu,
    ],
)
def test_other_functions_are_left_alone(function):
    assert found_in(function)[1] is None


@pytest.mark.parametrize("width", [32, 512, 4096])
def test_a_norm_without_the_mean_is_not_taken_for_layer_norm(width):
    def norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    assert found_in(norm, torch.rand(3, width))[1].function == "F.rms_norm(x, x.shape[-1:])"


def test_each_function_is_a_finding_of_its_own():
    log, found = found_in(lambda x: gelu(norm(gelu(x + 1.0).flip(0))))
    assert found.function in ('F.gelu(x, approximate="tanh")', "F.layer_norm(x, x.shape[-1:], weight, bias)")
    assert len({work.treated[0][0] for work in cheaper(log)}) == 1


@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": 2}, {"dilation": 2, "padding": 2}])
def test_a_convolution_by_unfold_is_replayed_as_one(options):
    log, found = found_in(lambda images: kernel @ functional.unfold(images, 3, **options), images)
    assert (found.kind, found.function) == ("function", "F.conv2d(x, weight)")
    ((convolve, (given, weight, *more), _),) = cheaper(log)[0].treated
    wanted = functional.conv2d(images, kernel.view(5, 3, 3, 3), **options)
    assert (given.shape, weight.shape) == (images.shape, (5, 3, 3, 3))
    assert convolve(images, kernel.view(5, 3, 3, 3), *more).shape == wanted.shape


@pytest.mark.parametrize("shape", [(4, 5, 27), (144, 5, 27)])
def test_other_weights_for_each_sample_or_place_are_no_convolution(shape):
    weights = nn.Parameter(torch.rand(shape))

    def combine(images):
        columns = functional.unfold(images, 3, padding=1)
        return weights @ (columns if len(weights) == 4 else columns.permute(2, 1, 0))

    assert found_in(combine, images)[1] is None
