"""Targets that cross-entropy ignores are counted, and the output layer is replayed without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_perf.probes.flops import ArithmeticCounter
from lightning_perf.probes.loss_targets import TargetCounter
from lightning_perf.probes.replay.calls import CallLog
from lightning_perf.probes.replay.rewrites import fewer_targets, specs_in
from lightning_perf.records import LossTargets

N, LENGTH, N_WORDS, WIDTH = 8, 20, 500, 24
N_KEPT = 32  # of N * LENGTH targets


class Words(nn.Module):
    """Predicts the words at 32 of 160 places.

    Args:
        loss: Returns the loss of scores and labels.
        width: Elements of a hidden vector.
    """

    def __init__(self, loss, width=WIDTH):
        super().__init__()
        self.embedding = nn.Embedding(N_WORDS, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, N_WORDS)
        self.loss = loss

    def forward(self, words):
        labels = words.masked_fill(torch.arange(words.numel()).view_as(words) >= N_KEPT, -100)
        return self.loss(self.head(self.norm(self.embedding(words))), labels)


def flat_loss(scores, labels):
    return F.cross_entropy(scores.view(-1, N_WORDS), labels.view(-1))


def transposed_loss(scores, labels):
    return F.cross_entropy(scores.transpose(1, 2), labels)


def own_index_loss(scores, labels):
    return F.cross_entropy(scores.float().view(-1, N_WORDS), labels.view(-1).clamp(min=-1), ignore_index=-1)


def two_losses(scores, labels):
    return flat_loss(scores, labels) + F.cross_entropy(scores[0, :5, :3], torch.zeros(5, dtype=torch.int64))


def squares(scores, labels):
    return (scores**2).mean()


def counted(model, log=None):
    with ArithmeticCounter(model, times_operators=True, log=log or CallLog(N)) as counter:
        model(torch.randint(0, N_WORDS, (N, LENGTH))).backward()
    assert not counter.failure
    return counter


@pytest.mark.parametrize("loss", [flat_loss, transposed_loss, own_index_loss, two_losses])
def test_ignored_targets_are_counted(loss):
    found = counted(Words(loss)).targets.read()
    assert found == LossTargets(n_targets=N * LENGTH, n_ignored=N * LENGTH - N_KEPT, n_classes=N_WORDS)


def test_nothing_is_counted_without_a_loss_over_classes():
    assert counted(Words(squares)).targets.read() is None


def test_nothing_is_read_before_it_is_asked_for():
    """On a device, reading waits; counting only launches an operator."""
    counter = TargetCounter()
    scores, labels = torch.zeros(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    counter.add("aten::nll_loss_forward", (scores, labels, None, 1, -100))
    with pytest.raises(RuntimeError, match="meta"):
        counter.read()


@pytest.mark.parametrize(
    ("loss", "softmax"),
    [(flat_loss, (N_KEPT, N_WORDS)), (transposed_loss, (N, N_WORDS, 4)), (own_index_loss, (N_KEPT, N_WORDS))],
)
def test_output_layer_and_softmax_are_replayed_on_the_other_positions(loss, softmax):
    log = CallLog(N)
    counted(Words(loss), log)
    works = fewer_targets(log, N_KEPT / (N * LENGTH))
    shapes = {work.calls[0].name: [spec.shape for spec in specs_in(work.treated[0])] for work in works}
    assert shapes.pop("aten::_log_softmax") == [softmax]
    assert shapes.pop("aten::addmm") == [(N_WORDS,), (N_KEPT, WIDTH), (WIDTH, N_WORDS)]
    assert not shapes


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Words(squares), "output layer before the loss is not known"),
        (Words(flat_loss, width=N * LENGTH), "160, is also a size of the output layer"),
    ],
)
def test_nothing_is_replayed_when_the_positions_are_not_clear(model, reason):
    log = CallLog(N)
    counted(model, log)
    with pytest.raises(ValueError, match=reason):
        fewer_targets(log, 0.2)
