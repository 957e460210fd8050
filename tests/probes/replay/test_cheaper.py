"""Operators whose results others give in less time are found, and those replayed in their place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.flops import ArithmeticCounter
from lightning_perf.probes.replay import CallLog
from lightning_perf.probes.replay.cheaper import cheaper, cheaper_operator

from .replaying import asked, probe_of

distances, signals, filters = torch.rand(2, 64, 128), torch.rand(4, 1500), torch.rand(4, 500)
matrix = torch.rand(96, 32)


def log_of(step):
    """Return the log of a step; what it returns is kept until the log is read."""
    log = CallLog(4)
    with ArithmeticCounter(nn.Linear(1, 1), now_ns=now_ns, times_operators=True, log=log) as counter:
        counter.direction = "forward"
        kept = step()
    assert not counter.failure
    found = cheaper_operator(log)
    del kept
    return log, found


def convolved(n):
    torch.fft.irfft(torch.fft.rfft(signals, n=n) * torch.fft.rfft(filters, n=n), n=n).sum()


def convolved_as_complex(n):
    torch.fft.ifft(torch.fft.fft(signals, n=n) * torch.fft.fft(filters, n=n)).abs().sum()


def penalty_of(*shapes, square=lambda each: each.pow(2).sum()):
    parameters = [nn.Parameter(torch.rand(shape)) for shape in shapes]
    return lambda: sum(square(each) for each in parameters).backward()


@pytest.mark.parametrize("convolve", [convolved, convolved_as_complex])
def test_transforms_of_a_bad_length_get_the_next_good_one(convolve):
    log, found = log_of(lambda: convolve(1999))
    assert (found.kind, found.size, found.better, found.n_operators) == ("transform", 1999, 2000, 3)
    assert found.site.startswith("test_cheaper.py:") or not found.site
    for work in cheaper(log):
        ((_, args, _),) = work.treated
        assert 2000 in (*args[0].shape, *args)
        assert 1999 not in (*args[0].shape, *args)


@pytest.mark.parametrize(
    "step",
    [
        lambda: convolved(2000),
        lambda: convolved(2002),  # 2 x 7 x 11 x 13
        lambda: torch.fft.rfft(signals, n=1999).abs().sum(),  # a spectrum: its frequencies depend on the length
    ],
)
def test_transforms_of_a_good_length_and_spectra_are_left_alone(step):
    assert log_of(step)[1] is None


@pytest.mark.parametrize(
    ("step", "needed"),
    [
        (lambda: matrix[distances.argsort(-1)[..., :12] % 96].sum(), 12),
        (lambda: matrix[distances.argsort(-1)[..., 1:13] % 96].sum(), 13),  # without the point itself
        (lambda: distances.sort(-1, descending=True).values[..., :12].sum(), 12),
        (lambda: distances.sort(-1).values[..., -12:].sum(), 12),
        (lambda: distances.sort(-1).values[..., :12:2].sum(), 11),
        (lambda: distances.sort(1).values[:, :12].sum(), 12),
        (lambda: distances.view(128, 128).sort(0).values[0].sum(), 1),
        (lambda: distances.sort(-1).values[..., 0].sum(), 1),
    ],
)
def test_sorts_that_are_read_at_one_end_are_replayed_as_topk(step, needed):
    log, found = log_of(step)
    assert (found.kind, found.better, found.n_operators) == ("sort", needed, 1)
    ((function, (spec, k, dim, _), _),) = cheaper(log)[0].treated
    assert function is torch.topk
    assert (k, spec.shape[dim]) == (needed, found.size)


@pytest.mark.parametrize(
    "step",
    [
        lambda: distances.sort(-1).values.sum(),
        lambda: distances.sort(-1).values[..., :100].sum(),
        lambda: distances.sort(-1).values[..., 64].sum(),  # a median
        lambda: distances.sort(-1).values[:, 0].sum(),  # one row of each matrix
        lambda: (distances.sort(-1).values[..., :12].sum(), distances.sort(-1).values[..., -12:].sum()),
        lambda: distances.sort(dim=-1, stable=True).values[..., :12].sum(),
        lambda: (order := distances.argsort(-1), matrix[order[..., :12] % 96].sum()),  # kept
        lambda: distances.argsort(-1) is None,  # read by nothing that was seen
    ],
)
def test_sorts_that_are_read_otherwise_are_left_alone(step):
    assert log_of(step)[1] is None


@pytest.mark.parametrize(
    "square",
    [lambda each: each.pow(2).sum(), lambda each: (each**2).sum(), lambda each: torch.norm(each) ** 2],
)
def test_squares_of_parameters_are_replayed_as_a_weight_decay(square):
    log, found = log_of(penalty_of((64, 32), (32, 16), (64, 32), square=square))
    assert (found.kind, found.shape, found.n_operators) == ("penalty", (64, 32), 3)
    assert sum(work.n for work in cheaper(log)) == 3


@pytest.mark.parametrize(
    "step",
    [
        penalty_of((64, 32), square=lambda each: each.abs().sum()),
        penalty_of((64, 32), square=lambda each: each.pow(2).sum(0).sum()),  # e.g. of each group
        penalty_of((64, 32), square=torch.norm),
        penalty_of((1,)),
        lambda: (matrix.pow(2)).sum(),
        lambda: (nn.Parameter(matrix.clone()) * 2).pow(2).sum().backward(),
    ],
)
def test_other_sums_over_parameters_are_left_alone(step):
    assert log_of(step)[1] is None


@pytest.mark.parametrize(
    "step",
    [
        lambda: convolved(1999),
        lambda: matrix[distances.argsort(-1)[..., :12] % 96].sum(),
        penalty_of((64, 32)),
    ],
)
def test_all_kinds_can_be_replayed(step):
    log, _ = log_of(step)
    probe = probe_of(nn.Linear(2, 2))
    probe.answer(asked("cheaper"), log, 300.0)
    (replayed,) = probe.record().results
    assert replayed.n_operators >= 1
    assert replayed.speedup is not None or replayed.is_negligible, replayed.reason
