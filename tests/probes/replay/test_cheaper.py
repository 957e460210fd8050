"""Operators whose results others give in less time are found, and those replayed in their place."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.replay import reads
from lightning_perf.probes.replay.calls import CallLog
from lightning_perf.probes.replay.cheaper import cheaper, cheaper_operator

from .replaying import asked, probe_of

counts_references = pytest.mark.skipif(
    not reads._n_without_variable(), reason="this torch does not show whether a variable holds a tensor"
)
distances, signals, filters = torch.rand(2, 64, 128), torch.rand(4, 1500), torch.rand(4, 500)
matrix = torch.rand(96, 32)


def log_of(step, parameters=()):
    """Return the log of a step; what it returns is kept until the log is read."""
    log = CallLog(4, (), [parameters])
    with ArithmeticCounter(nn.Linear(1, 1), now_ns=now_ns, times_operators=True, log=log) as counter:
        counter.direction = "forward"
        kept = step()
    assert not counter.failure
    found = cheaper_operator(log)
    del kept
    return log, found


def convolved(n):
    torch.fft.irfft(torch.fft.rfft(signals, n=n) * torch.fft.rfft(filters, n=n), n=n).sum()


def stft():
    return torch.stft(signals, 510, window=torch.ones(510), return_complex=True)


def convolved_as_complex(n):
    torch.fft.ifft(torch.fft.fft(signals, n=n) * torch.fft.fft(filters, n=n)).abs().sum()


def penalty_of(*shapes, square=lambda each: each.pow(2).sum(), scale=lambda total: 0.1 * total, is_trained=True):
    """Return the log of a step with a sum over parameters in its loss, and what was found."""
    parameters = [nn.Parameter(torch.rand(shape)) for shape in shapes]

    def step():
        loss = 1.0 + scale(sum(square(each) for each in parameters))
        loss.backward()

    return log_of(step, parameters if is_trained else ())


def kept_in_a_variable():
    order = distances.argsort(-1)
    matrix[order[..., :12] % 96].sum()
    order.tolist()


class Whole(torch.autograd.Function):
    """Reads all of what was sorted in its backward pass."""

    @staticmethod
    def forward(context, values, order):
        context.save_for_backward(order)
        return values[..., :12] * (order[..., :12] > 0)

    @staticmethod
    def backward(context, gradient):
        (order,) = context.saved_tensors
        return nn.functional.pad(gradient, (0, 116)) * (order > 0), None


def read_in_backward():
    values = distances.clone().requires_grad_()
    Whole.apply(values, distances.argsort(-1)).sum().backward()


@pytest.mark.parametrize("convolve", [convolved, convolved_as_complex])
def test_transforms_of_a_bad_length_get_the_next_good_one(convolve):
    log, found = log_of(lambda: convolve(1999))
    assert (found.kind, found.size, found.better, found.n_operators) == ("transform", 1999, 2000, 3)
    assert found.site.startswith("test_cheaper.py:") or not found.site
    for work in cheaper(log):
        ((_, args, _),) = work.treated
        assert 2000 in (*args[0].shape, *args)
        assert 1999 not in (*args[0].shape, *args)


def test_only_the_last_dimension_gets_another_length():
    images, kernel = torch.rand(2, 60, 30), torch.rand(2, 60, 8)

    def convolve():
        size = {"s": (67, 37), "dim": (1, 2)}
        torch.fft.irfftn(torch.fft.rfftn(images, **size) * torch.fft.rfftn(kernel, **size), **size).sum()

    log, found = log_of(convolve)
    assert (found.size, found.better) == (37, 40)
    shapes = {work.treated[0][1][0].shape for work in cheaper(log)}
    assert all(shape[1] == 67 and shape[2] in (21, 40) for shape in shapes), shapes


@pytest.mark.parametrize(
    "step",
    [
        lambda: convolved(2000),
        lambda: convolved(2002),  # 2 x 7 x 11 x 13
        lambda: torch.fft.rfft(signals, n=1999).abs().sum(),  # a spectrum: its frequencies depend on the length
        lambda: torch.fft.irfft(torch.fft.rfft(signals[:, :1499]) * 2, n=1499).sum(),  # periodic: not padded
        lambda: torch.istft(stft(), 510, window=torch.ones(510), length=1500).sum(),  # 2 x 3 x 5 x 17
    ],
)
def test_transforms_of_a_good_length_and_spectra_are_left_alone(step):
    assert log_of(step)[1] is None


def long_convolution(taps=200, **more):
    kernel = nn.Parameter(torch.rand(1, 1, taps))
    nn.functional.conv1d(signals[:, None], kernel, **more).sum().backward()


def test_long_convolutions_are_replayed_as_transforms():
    log, found = log_of(long_convolution)
    assert (found.kind, found.shape, found.size, found.n_operators) == ("convolution", (4, 1, 1500), 200, 1)
    assert found.site.startswith("test_cheaper.py:")
    ((transforms, (spec, kernel), _),) = cheaper(log)[0].treated
    x, w = torch.rand(spec.shape), torch.rand(kernel.shape)
    torch.testing.assert_close(transforms(x, w), nn.functional.conv1d(x, w))


def test_transforms_have_the_padding_and_the_bias_of_a_convolution():
    weight, bias = torch.rand(3, 2, 100), torch.rand(3)
    x = torch.rand(2, 2, 300)
    log, _ = log_of(lambda: nn.functional.conv1d(x, weight, bias, padding=50).sum())
    ((transforms, _, _),) = cheaper(log)[0].treated
    torch.testing.assert_close(transforms(x, weight, bias), nn.functional.conv1d(x, weight, bias, padding=50))


@pytest.mark.parametrize(("n_in", "n_out", "groups"), [(4, 4, 4), (6, 4, 2)])
def test_transforms_keep_groups_of_channels_apart(n_in, n_out, groups):
    x, weight = torch.rand(2, n_in, 300), torch.rand(n_out, n_in // groups, 100)
    log, found = log_of(lambda: nn.functional.conv1d(x, weight, groups=groups).sum())
    assert found.kind == "convolution"
    ((transforms, _, _),) = cheaper(log)[0].treated
    torch.testing.assert_close(transforms(x, weight), nn.functional.conv1d(x, weight, groups=groups))


@pytest.mark.parametrize(("free_mib", "is_replayed"), [(30, False), (150, True)])
def test_transforms_are_not_replayed_when_the_spectra_of_all_kernels_do_not_fit(free_mib, is_replayed):
    x, weight = torch.rand(1, 48, 1000), nn.Parameter(torch.rand(48, 48, 64))  # 10 MiB of spectra
    log, _ = log_of(lambda: nn.functional.conv1d(x, weight).sum().backward())
    memory = SimpleNamespace(free_bytes=lambda: free_mib * 2**20, scope=nullcontext)
    probe = probe_of(nn.Linear(1, 1), memory=memory)
    probe.answer(asked("cheaper"), log, trained_s=1000.0)
    (result,) = probe.record().results
    assert (result.speedup is not None) == is_replayed
    assert result.reason.startswith("" if is_replayed else f"MemoryError: {free_mib} MiB are free")


@pytest.mark.parametrize("more", [{"taps": 63}, {"stride": 2}, {"dilation": 2}, {"groups": 1, "taps": 9}])
def test_other_convolutions_are_left_alone(more):
    assert log_of(lambda: long_convolution(**more))[1] is None


def enlarged(n_classes=4, kernel=1, is_used=False, n_channels=16, **more):
    pixels = nn.functional.interpolate(maps := nn.Parameter(torch.rand(2, 16, 8, 8)), size=(32, 32), mode="bilinear")
    weight = torch.rand(n_classes, n_channels // more.get("groups", 1), kernel, kernel)
    loss = nn.functional.conv2d(pixels[:, :n_channels], weight, torch.rand(n_classes), **more).sum()
    (loss + pixels.mean() if is_used else loss).backward()
    return maps.grad.sum()


def test_interpolations_are_replayed_behind_a_pointwise_convolution():
    log, found = log_of(enlarged)
    assert (found.kind, found.size, found.better, found.n_operators) == ("interpolation", 16, 4, 1)
    assert found.site.startswith("test_cheaper.py:")
    work = cheaper(log)[0]
    (enlarge, (_, *size), _), (convolve, (pixels, *others), _) = work.as_is
    (first, (small, *_), _), (then, (fewer, *_), _) = work.treated
    assert (first, then, pixels.shape, small.shape, fewer.shape) == (
        convolve, enlarge, (2, 16, 32, 32), (2, 16, 8, 8), (2, 4, 8, 8),
    )  # fmt: skip
    x = torch.rand(small.shape)
    weight, bias = (torch.rand(spec.shape) for spec in others[:2])
    one, other = convolve(enlarge(x, *size), weight, bias), enlarge(convolve(x, weight, bias), *size)
    torch.testing.assert_close(one, other)


def test_a_penalty_that_is_logged_is_still_computed():
    def scale(total):
        (0.5 * total).detach().clone()
        return total

    log, _ = penalty_of((64, 32), scale=scale)
    (work,) = cheaper(log)
    assert [function for function, *_ in work.treated[1:]] == [function for function, *_ in work.as_is]
    assert len(cheaper(penalty_of((64, 32))[0])[0].treated) == 1


def test_a_penalty_is_found_where_operators_are_not_timed():
    parameter = nn.Parameter(torch.rand(64, 32))
    log = CallLog(4, (), [[parameter]])
    with ArithmeticCounter(nn.Linear(1, 1), now_ns=now_ns, times_operators=False, log=log) as counter:
        counter.direction = "forward"
        parameter.pow(2).sum().backward()
    assert cheaper_operator(log).total_s == 0


@pytest.mark.parametrize(
    "more", [{"n_classes": 16}, {"kernel": 3}, {"padding": 1}, {"is_used": True}, {"n_channels": 8}, {"groups": 2}]
)
def test_interpolations_that_are_needed_are_left_alone(more):
    assert log_of(lambda: enlarged(**more))[1] is None


@counts_references
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
        (lambda: distances.sort(-1).values[..., :12].expand(3, -1, -1, -1).sum(), 12),
        (lambda: distances.sort(-1).values[..., :12].unsqueeze(-1).sum(), 12),
        (
            lambda: (distances.sort(-1).values[..., :12].sum(), (torch.zeros(2, 64, 128) + 1).sum()),
            12,
        ),  # memory used again
    ],
)
def test_sorts_that_are_read_at_one_end_are_replayed_as_topk(step, needed):
    log, found = log_of(step)
    assert (found.kind, found.better, found.n_operators) == ("sort", needed, 1)
    ((function, (spec, k, dim, is_largest), _),) = cheaper(log)[0].treated
    assert function is torch.topk
    assert is_largest == log.calls[0].named["descending"]
    assert (k, spec.shape[dim]) == (needed, found.size)


@pytest.mark.parametrize(
    "step",
    [
        lambda: distances.sort(-1).values.sum(),
        lambda: distances.sort(-1).values[..., :100].sum(),
        lambda: distances.sort(-1).values[..., 64].sum(),  # a median
        lambda: distances.sort(-1).values[:, 0].sum(),  # one row of each matrix
        lambda: distances.sort(-1).values[:, 0, :12].sum(),
        lambda: distances.sort(-1).values[..., :12].unfold(-1, 4, 1).sum(),
        lambda: (distances.sort(-1).values[..., :100].sum(), distances.sort(-1).values[..., :12].sum()),
        lambda: (distances.sort(-1).values[..., :12].sum(), distances.sort(-1).values[..., -12:].sum()),
        lambda: distances.sort(dim=-1, stable=True).values[..., :12].sum(),
        lambda: (order := distances.argsort(-1), matrix[order[..., :12] % 96].sum()),  # kept
        lambda: distances.argsort(-1) is None,  # read by nothing that was seen
        kept_in_a_variable,
        read_in_backward,
    ],
)
def test_sorts_that_are_read_otherwise_are_left_alone(step):
    assert log_of(step)[1] is None


@counts_references
@pytest.mark.parametrize(("n_fewer", "is_found"), [(1, True), (2, True), (None, False)])
def test_sorts_held_by_variables_are_left_alone_whatever_is_counted_as_a_reference(monkeypatch, n_fewer, is_found):
    """Python 3.14 does not count references of its own stack, torch before 2.10 not those of C++."""
    count = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda one: 3 if n_fewer is None else count(one) - n_fewer)
    reads._n_without_variable.cache_clear()
    try:
        assert log_of(kept_in_a_variable)[1] is None
        assert (log_of(lambda: matrix[distances.argsort(-1)[..., :12] % 96].sum())[1] is not None) == is_found
    finally:
        reads._n_without_variable.cache_clear()


@pytest.mark.parametrize(
    "square",
    [lambda each: each.pow(2).sum(), lambda each: (each**2).sum(), lambda each: torch.norm(each) ** 2],
)
def test_squares_of_parameters_are_replayed_as_a_weight_decay(square):
    log, found = penalty_of((64, 32), (32, 16), (64, 32), square=square)
    assert (found.kind, found.n_operators) == ("penalty", 3)
    assert found.shape in {(64, 32), (32, 16)}, "of the one that took the most time"
    assert sum(work.n for work in cheaper(log)) == 3


def test_a_penalty_may_be_logged_and_averaged():
    def scale(total):
        total.detach().clone()
        return torch.stack([total, total]).mean() / 4 - 1

    assert penalty_of((64, 32), scale=scale)[1].kind == "penalty"


@pytest.mark.parametrize(
    "found",
    [
        penalty_of((64, 32), square=lambda each: each.abs().sum()),
        penalty_of((64, 32), square=lambda each: each.pow(3).sum()),
        penalty_of((64, 32), square=lambda each: each.pow(2).sum(0).sum()),  # e.g. of each group
        penalty_of((64, 32), square=lambda each: each.pow(2).mean(0).sum()),
        penalty_of((64, 32), square=torch.norm),
        penalty_of((64, 32), square=lambda each: torch.norm(each) ** 2 + torch.norm(each)),
        penalty_of((64, 32), square=lambda each: torch.linalg.vector_norm(each, 3) ** 2),
        penalty_of((64, 32), square=lambda each: torch.linalg.vector_norm(each, dim=0).pow(2).sum()),
        penalty_of((64, 32), scale=torch.sqrt),  # a norm
        penalty_of((64, 32), scale=lambda total: nn.Parameter(torch.ones(())).exp() * total),
        penalty_of((64, 32), scale=lambda total: nn.Parameter(torch.ones(())).exp() / total),
        penalty_of((64, 32), square=lambda each: (each / each.pow(2).sum()).sum()),  # normalized weights
        penalty_of((64, 32), scale=lambda total: total.detach() + nn.Parameter(matrix).sum()),  # only logged
        penalty_of((64, 32), is_trained=False),  # e.g. points that require gradients
        penalty_of((1,)),
        log_of(lambda: matrix.pow(2).sum()),
    ],
)
def test_other_sums_over_parameters_are_left_alone(found):
    assert found[1] is None


@pytest.mark.parametrize(
    "step",
    [
        lambda: convolved(1999),
        pytest.param(lambda: matrix[distances.argsort(-1)[..., :12] % 96].sum(), marks=counts_references),
        long_convolution,
        enlarged,
        None,
    ],
)
def test_all_kinds_can_be_replayed(step):
    log, _ = log_of(step) if step is not None else penalty_of((64, 32))
    probe = probe_of(nn.Linear(2, 2))
    probe.answer(asked("cheaper"), log, 300.0)
    (replayed,) = probe.record().results
    assert replayed.n_operators >= 1
    assert replayed.speedup is not None or replayed.is_negligible, replayed.reason


users, items = nn.Parameter(torch.rand(96, 16)), nn.Parameter(torch.rand(96, 16))
a, b, c, d = (nn.Parameter(torch.rand(shape)) for shape in ((6, 64, 4), (6, 4, 64), (6, 64, 4), (6, 64, 4)))
fixed = torch.rand(6, 64, 4)


@pytest.mark.parametrize(
    ("step", "reordered"),
    [
        (lambda: a @ b @ c, lambda: a @ (b @ c)),
        (lambda: torch.einsum("nij,njk,nkl->nil", a, b, c), lambda: a @ (b @ c)),
        (lambda: (a @ b).mT @ c, lambda: b.mT @ (a.mT @ c)),
        (lambda: c.mT @ (a @ b), lambda: (c.mT @ a) @ b),
        (lambda: c.mT @ (a @ b).mT, lambda: (c.mT @ b.mT) @ a.mT),
        (lambda: a[0] @ b[0] @ c[0], lambda: a[0] @ (b[0] @ c[0])),
        (lambda: a @ b @ fixed, lambda: a @ (b @ fixed)),
        (lambda: a @ fixed.mT @ fixed, lambda: a @ (fixed.mT @ fixed)),
        (lambda: fixed @ b.detach() @ c, lambda: fixed @ (b.detach() @ c)),
    ],
)
def test_matrices_are_multiplied_in_the_order_that_costs_less(step, reordered):
    log, found = log_of(lambda: step().sum().backward())
    assert (found.kind, found.n_operators, found.shape[-2:]) == ("order", 1, (64, 64))
    assert found.size / found.better == 16
    assert found.site.startswith("test_cheaper.py:")
    (work,) = cheaper(log)
    wanted, _ = log_of(lambda: reordered().sum().backward())
    products = [call.specs for call in wanted.calls if call.name in ("aten::mm", "aten::bmm")]
    replayed = [list(pair) for _, pair, _ in work.treated]
    for pair, like in zip(replayed, products, strict=True):
        for spec, other in zip(pair, like, strict=True):
            assert spec.shape == other.shape
            assert spec.needs_grad == other.needs_grad
            assert spec.source >= 0 or spec.stride == other.stride


def used_twice():
    scores = a @ b
    return (scores @ c).sum() + scores.mean()


def same_product_twice():
    scores = a @ b
    return scores @ c + scores @ d


def squared():
    scores = a @ b
    return scores @ scores


def embedded():
    scores = a @ b
    scores.detach().numpy().argmax()
    return scores @ c


class Scored(torch.autograd.Function):
    """Uses scores in its backward pass that its forward pass does not read."""

    @staticmethod
    def forward(context, scores, values):
        context.save_for_backward(scores)
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        (scores,) = context.saved_tensors
        return None, gradient * scores.sum()


def read_by_a_function_of_the_users():
    scores = a @ b
    return Scored.apply(scores, c).sum() + (scores @ c).sum()


@pytest.mark.parametrize(
    "step",
    [
        lambda: a @ (b @ c),
        used_twice,
        same_product_twice,
        squared,
        embedded,
        read_by_a_function_of_the_users,
        lambda: (a @ b).softmax(-1) @ c,
        lambda: (a @ b)[..., :32] @ c[:, :32],
        lambda: users[:64, :8] @ torch.rand(8, 8) @ torch.rand(8, 8),  # the other order takes 9/16 of it
        lambda: torch.eye(64).to_sparse() @ a[0] @ b[0],
        lambda: torch.mm(fixed[0], fixed[0].T, out=torch.empty(64, 64)) @ fixed[0],
    ],
)
def test_products_in_the_better_order_or_needed_as_they_are_stay(step):
    def run():
        loss = step().sum()
        if loss.requires_grad:
            loss.backward()

    assert log_of(run)[1] is None


def test_an_order_that_takes_half_of_the_multiplications_is_replayed():
    one, other = torch.rand(16, 32), torch.rand(32, 16)  # 64 · 16 · 32 twice; 16 · 32 · 16, then 64 · 16 · 16
    _, found = log_of(lambda: (users[:64] @ one @ other).sum().backward())
    assert (found.kind, found.size, found.better) == ("order", 65_536, 24_576)


@pytest.mark.parametrize("n_rows", [8, 64])
def test_layer_of_low_rank_is_applied_factor_by_factor(n_rows):
    up, down, bias = (nn.Parameter(torch.rand(*shape)) for shape in ((96, 4), (4, 48), (96,)))
    rows = torch.rand(n_rows, 48, requires_grad=True)
    log, found = log_of(lambda: torch.nn.functional.linear(rows, up @ down, bias).sum().backward())
    assert (found.kind, found.n_operators, found.shape) == ("order", 1, (96, 48))
    assert (found.size, found.better) == (96 * 4 * 48 + n_rows * 48 * 96, n_rows * 4 * (48 + 96))
    (work,) = cheaper(log)
    assert [function for function, _, _ in (*work.as_is, *work.treated)] == [torch.matmul, torch.addmm] * 2
    (_, first, _), (_, (of_bias, between, last), _) = work.treated
    assert [spec.shape for spec in (*first, of_bias, between, last)] == [
        (n_rows, 48), (48, 4), (96,), (n_rows, 4), (4, 96),
    ]  # fmt: skip


@pytest.mark.parametrize("bias_of", [lambda product: product, lambda product: product[0]])
def test_product_that_is_the_bias_as_well_stays(bias_of):
    up, down, square = torch.rand(96, 4), torch.rand(4, 96), nn.Parameter(torch.rand(96, 96))

    def step(is_bias):
        product = up @ down
        torch.addmm(bias_of(product) if is_bias else torch.rand(96), product, square).sum().backward()

    assert log_of(lambda: step(is_bias=True))[1] is None
    assert log_of(lambda: step(is_bias=False))[1].kind == "order"


def test_products_that_the_step_returns_stay():
    log, found = log_of(lambda: (scores := a @ b, (scores @ c).sum().backward()))
    assert found is None
    assert len(log.calls) > 2


def test_each_product_belongs_to_the_chain_that_saves_the_most():
    wide = nn.Parameter(torch.rand(6, 64, 2))
    log, found = log_of(lambda: ((a @ b) @ (wide @ wide.mT)).sum().backward())
    assert (found.kind, found.n_operators) == ("order", 1)
    assert [call.name for call in cheaper(log)[0].calls] == ["aten::bmm", "aten::bmm"]


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.diag(users @ items.T),
        lambda: (users @ items.T).diagonal(),
        lambda: torch.trace(users @ items.T),
        lambda: (c @ c.mT).diagonal(dim1=1, dim2=2),
    ],
)
def test_a_product_read_along_the_diagonal_is_replayed_element_by_element(step):
    log, found = log_of(lambda: step().sum().backward())
    assert (found.kind, found.n_operators) == ("diagonal", 1)
    assert found.size == found.shape[-1]
    ((_, (product, pair, _), (diagonal, same, _)),) = [(0, *work.as_is, *work.treated) for work in cheaper(log)]
    assert pair == same
    one, other = torch.rand(5, 3), torch.rand(3, 5)
    torch.testing.assert_close(diagonal(one, other), product(one, other).diagonal())


def contrasted():
    scores = users @ items.T
    return scores.logsumexp(1).sum() - scores.diag().sum()


def masked():
    scores = users @ items.T
    scores.fill_diagonal_(-1e9)
    return scores.logsumexp(1)


def with_jitter():
    kernel = users.detach() @ users.detach().T
    kernel.diagonal().add_(1.0)
    return torch.linalg.cholesky(kernel) * items[:, :1]


def shown():
    scores = users @ items.T
    scores.detach().numpy().max()
    return scores.diag()


@pytest.mark.parametrize(
    "step",
    [
        contrasted,
        masked,
        with_jitter,
        shown,
        lambda: (users @ items.T).diagonal(1),
        lambda: torch.diag(users @ items.T, -1),
        lambda: (users @ items.T)[:64, :64].diag(),
        lambda: (users @ items[:64].T).diagonal(),
        lambda: torch.diag(users @ items[:64].T),
        lambda: torch.as_strided(c @ c.mT, (3, 64), (64, 65)),
        lambda: users @ items.T,
    ],
)
def test_products_read_elsewhere_are_left_alone(step):
    assert log_of(lambda: step().sum().backward())[1] is None
