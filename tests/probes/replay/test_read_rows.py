"""Layers of whose rows few are read are found, and replayed on these rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_perf.probes.replay.calls import specs_in
from lightning_perf.probes.replay.cheaper import cheaper

from .replaying import asked, probe_of
from .test_cheaper import log_of

hidden = torch.rand(4, 10, 16)
head, plain_head, narrow = nn.Linear(16, 64), nn.Linear(16, 64, bias=False), nn.Linear(16, 16)
square = nn.Linear(16, 16)
words = torch.arange(4)
last = torch.tensor([3, 9, 5, 7])
kept = []
one_in_ten = (torch.arange(40) % 10 == 3).float().view(4, 10, 1)
gate = nn.Parameter(one_in_ten.clone())
router = nn.Linear(16, 10)
in_turn = torch.arange(40).view(4, 10, 1) % 10
experts = [nn.Linear(16, 16) for _ in range(10)]
chosen = torch.arange(40).view(4, 10, 1, 1) % 10
routed = functional.one_hot(torch.arange(40).view(4, 10) % 10, 10).float()


def hold(scores):
    kept.append(scores)
    return scores[:, -1]


def show(scores):
    scores.detach().numpy().max()
    return scores[:, -1]


def mixture(gates):
    return sum(gates[..., n, None] * expert(hidden) for n, expert in enumerate(experts))


def straight_through(probabilities):
    return routed - probabilities.detach() + probabilities


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (lambda: plain_head(hidden)[:, -1], ["mm"]),
        (lambda: head(hidden)[:, -1], ["addmm"]),
        (lambda: head(hidden)[:, 0].softmax(-1), ["addmm"]),
        (lambda: head(hidden)[torch.arange(4), last], ["addmm"]),
        (lambda: functional.cross_entropy(head(hidden.transpose(0, 1))[-1], words), ["mm", "add"]),
        (lambda: functional.relu(head(hidden))[:, -1], ["addmm", "relu"]),
        (lambda: head(functional.gelu(narrow(hidden)))[:, -1], ["addmm", "gelu", "addmm"]),
        (lambda: one_in_ten * head(functional.gelu(narrow(hidden))), ["addmm", "gelu", "addmm"]),
        (lambda: functional.relu(head(hidden)) * (2 * functional.relu(gate)), ["addmm", "relu"]),
        (lambda: mixture(router(hidden).softmax(-1) * routed), ["addmm"]),
        (lambda: mixture(router(hidden).masked_fill(routed == 0, -math.inf).softmax(-1)), ["addmm"]),
        (lambda: mixture(torch.zeros(4, 10, 10).scatter(2, in_turn, router(hidden).gather(2, in_turn))), ["addmm"]),
        (lambda: mixture((gates := torch.where(routed > 0, router(hidden).exp(), 0)) / gates.sum(-1, True)), ["addmm"]),
        (lambda: sum(routed[..., n, None] * expert(hidden) for n, expert in enumerate(experts)), ["addmm"]),
        (lambda: (torch.stack([expert(hidden) for expert in experts], 2) * routed.unsqueeze(-1)).sum(2), ["addmm"]),
        (lambda: torch.stack([one(hidden) for one in experts], 2).gather(2, chosen.expand(4, 10, 1, 16)), ["addmm"]),
    ],
)
def test_layers_are_replayed_on_the_rows_that_are_read(step, names):
    log, found = log_of(lambda: step().sum().backward())
    assert (found.kind, found.size, found.better) == ("rows", 40, 4)
    works = cheaper(log)
    assert sorted(work.calls[0].name.removeprefix("aten::") for work in works) == sorted(names)
    for work in works:
        as_is, treated = (specs_in(bounds[0]) for bounds in (work.as_is, work.treated))
        changed = {(one.shape, other.shape) for one, other in zip(as_is, treated, strict=True) if one != other}
        assert changed
        assert all(math.prod(before) == 10 * math.prod(after) for before, after in changed)
    probe = probe_of(nn.Linear(2, 2))
    probe.answer(asked("cheaper"), log, 300.0)
    (replayed,) = probe.record().results
    assert replayed.n_operators >= 1, replayed.reason


def prototypes(rows):
    labels = torch.arange(10) % 5
    return torch.stack([rows[labels == one].mean(0) for one in range(5)])


class Whole(torch.autograd.Function):
    """Reads one position in forward, all of them in backward."""

    @staticmethod
    def forward(context, scores):
        context.save_for_backward(scores)
        return scores[:, -1].clone()

    @staticmethod
    def backward(context, gradient):
        (scores,) = context.saved_tensors
        return scores.exp() * gradient.unsqueeze(1)


@pytest.mark.parametrize(
    "step",
    [
        lambda: head(hidden),
        lambda: head(hidden)[:, 2:],  # more than half of the rows
        lambda: head(hidden)[:, :, :8],  # a part of each row
        lambda: (scores := head(hidden))[:, -1].sum() + scores.logsumexp(-1).mean(),
        lambda: head(hidden).cumsum(1)[:, -1],  # each row needs those before it
        lambda: hold(head(hidden)),
        lambda: show(head(hidden)),
        lambda: gate * head(hidden),  # its zeros get gradients
        lambda: (2 * gate) * head(hidden),
        lambda: mixture(straight_through(router(hidden).softmax(-1))),
        lambda: mixture(functional.gumbel_softmax(router(hidden), hard=True)),
        lambda: (1 - one_in_ten) * head(hidden),
        lambda: head(hidden) * torch.eye(64)[0],  # for each column
        lambda: torch.stack([expert(hidden) for expert in experts], 2),
        lambda: torch.stack([expert(hidden) for expert in experts], 3)[..., :2],
        lambda: head(hidden).gather(2, last.view(4, 1, 1).expand(4, 10, 2)),
        lambda: narrow(hidden).gather(1, torch.zeros(4, 1, 16, dtype=torch.int64)),  # an index for each element
        lambda: head(hidden)[:, -1].detach(),  # without a backward pass
        lambda: hidden.clone().requires_grad_().tanh()[:, -1],  # no layer is among them
        lambda: (keys := narrow(hidden[0])) @ keys.T[:, :2],  # each row is needed for all rows of the other
        lambda: prototypes(head(hidden[0])),
        lambda: (square(hidden[0]) @ hidden[0].T)[torch.arange(10), torch.arange(10)],
        lambda: functional.gelu(head(hidden).view(4, 10, 8, 8))[:, :, 0],
        lambda: head(hidden).transpose(1, 2).contiguous()[:, :4],
        lambda: Whole.apply(head(hidden)),
        lambda: functional.relu(head(hidden[:, :0])),
    ],
)
def test_rows_that_are_needed_are_computed(step):
    def run():
        total = step().sum()
        if total.requires_grad:
            total.backward()

    assert log_of(run)[1] is None


def test_what_is_found_does_not_change_after_the_step():
    log, found = log_of(lambda: functional.relu(head(hidden))[:, -1].sum().backward())
    kept.append(found)
    assert cheaper(log) is not None
    log.row_reads = None  # tensors are freed after the step, and would not show what is read of them
    assert len(cheaper(log)) == 2


def test_norms_of_other_kinds_are_left_alone():
    embedding = nn.Embedding(50, 8, max_norm=1.0, norm_type=1.0)
    assert log_of(lambda: embedding(torch.arange(20)).sum().backward())[1] is None


def test_norms_of_rows_are_limited_all_at_once():
    embedding = nn.Embedding(50, 8, max_norm=1.0)
    log, found = log_of(lambda: embedding(torch.arange(70) % 20).sum().backward())
    assert (found.kind, found.size, found.shape) == ("max_norm", 20, (50, 8))
    (work,) = cheaper(log)
    (one_by_one, (_, index, most, _), _), (at_once, _, _) = *work.as_is, *work.treated
    tables = [torch.rand(50, 8), torch.rand(50, 8)]
    tables[1].copy_(tables[0])
    one_by_one(tables[0], index, most, 2.0), at_once(tables[1], index, most)
    assert torch.allclose(*tables)
    assert (tables[0].norm(dim=1) <= 1.001).sum() >= 20
