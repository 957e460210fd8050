"""Targets that cross-entropy ignores are counted, and the output layer is replayed without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.replay.calls import CallLog, specs_in
from lightning_perf.probes.replay.rewrites import fewer_targets, output_layer_of
from lightning_perf.probes.sampled_steps.loss_targets import TargetCounter

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


def chunked_loss(scores, labels):
    pairs = zip(scores.view(4, -1, N_WORDS), labels.view(4, -1), strict=True)
    return sum(F.cross_entropy(each, some, reduction="sum") for each, some in pairs)


def squares(scores, labels):
    return (scores**2).mean()


def counted(model, log=None):
    with ArithmeticCounter(model, times_operators=True, log=log or CallLog(N)) as counter:
        model(torch.randint(0, N_WORDS, (N, LENGTH))).backward()
    assert not counter.failure
    return counter


@pytest.mark.parametrize("loss", [flat_loss, transposed_loss, own_index_loss, two_losses, chunked_loss])
def test_ignored_targets_are_counted(loss):
    found = counted(Words(loss)).targets.read()
    assert (found.n_targets, found.n_ignored, found.n_classes) == (N * LENGTH, N * LENGTH - N_KEPT, N_WORDS)
    assert found.ignore_index == (-1 if loss is own_index_loss else -100)
    assert found.site.startswith("test_loss_targets.py:")


@pytest.mark.parametrize("sites", [["", "model.py:30"], ["model.py:30"]])
def test_line_of_the_output_layer_is_that_of_its_product(sites):
    assert counted(Words(flat_loss)).targets.behind(sites).read().layer_site == "model.py:30"


def test_targets_do_not_count_when_no_output_layer_is_before_the_loss():
    assert counted(Words(flat_loss)).targets.behind([]) is None


def test_nothing_is_counted_without_a_loss_over_classes():
    assert counted(Words(squares)).targets.read() is None


def test_nothing_is_read_before_it_is_asked_for():
    """On a device, reading waits; counting only launches an operator."""
    counter = TargetCounter()
    scores, labels = torch.zeros(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    counter.add("aten::nll_loss_forward", (scores, labels, None, 1, -100))
    with pytest.raises(RuntimeError, match="meta"):
        counter.read()


def shapes_of(log, part=N_KEPT / (N * LENGTH)):
    """Return the shapes of each operator's tensors after the targets were reduced."""
    works = fewer_targets(log, part)
    return {work.calls[0].name: [spec.shape for spec in specs_in(work.treated[0])] for work in works}


@pytest.mark.parametrize(
    ("loss", "softmax"),
    [(flat_loss, (N_KEPT, N_WORDS)), (transposed_loss, (N, N_WORDS, 4)), (own_index_loss, (N_KEPT, N_WORDS))],
)
def test_output_layer_and_softmax_are_replayed_on_the_other_positions(loss, softmax):
    log = CallLog(N)
    counted(Words(loss), log)
    head = [(N_WORDS,), (N_KEPT, WIDTH), (WIDTH, N_WORDS)]
    assert shapes_of(log) == {"aten::_log_softmax": [softmax], "aten::addmm": head}


def test_chunks_are_reduced_alike():
    log = CallLog(N)
    counted(Words(chunked_loss), log)
    head = [(N_WORDS,), (N_KEPT, WIDTH), (WIDTH, N_WORDS)]
    assert shapes_of(log) == {"aten::_log_softmax": [(N_KEPT // 4, N_WORDS)], "aten::addmm": head}


def test_positions_are_reduced_when_labels_are_shifted():
    """Scores without those of the last position are copied."""
    log = CallLog(N)
    counted(Words(lambda scores, labels: flat_loss(scores[:, 1:].contiguous(), labels[:, 1:].contiguous())), log)
    shapes = shapes_of(log, part=0.5)
    assert shapes["aten::clone"] == [(N, round((LENGTH - 1) / 2), N_WORDS)]
    assert shapes["aten::_log_softmax"] == [(N * (LENGTH - 1) // 2, N_WORDS)]
    assert shapes["aten::addmm"][1] == (N * LENGTH // 2, WIDTH)


@pytest.mark.parametrize("width", [N * LENGTH, N, LENGTH])
def test_weights_keep_their_size_when_it_is_the_number_of_positions(width):
    model = Words(flat_loss, width)
    model.head.requires_grad_(False)  # neither this nor its cast by autocast makes a weight a position
    log = CallLog(N)
    with torch.autocast("cpu", torch.bfloat16):
        counted(model, log)
    assert shapes_of(log)["aten::addmm"] == [(N_WORDS,), (N_KEPT, width), (width, N_WORDS)]


def test_one_dimension_is_reduced_when_two_are_alike():
    model = Words(transposed_loss)
    log = CallLog(LENGTH)
    with ArithmeticCounter(model, times_operators=True, log=log):
        model(torch.randint(0, N_WORDS, (LENGTH, LENGTH))).backward()
    assert shapes_of(log, part=0.5)["aten::_log_softmax"] == [(LENGTH, N_WORDS, LENGTH // 2)]


def nonlinear(scores):
    return scores.sin()


def of_another_layer(scores):
    return F.linear(scores, torch.ones(9, N_WORDS)).relu()


@pytest.mark.parametrize("change", [nonlinear, of_another_layer])
def test_layer_is_no_output_layer_when_scores_change_after_it(change):
    log = CallLog(N)
    counted(Words(lambda scores, labels: flat_loss(F.pad(change(scores), (0, N_WORDS))[..., :N_WORDS], labels)), log)
    assert output_layer_of(log) == []


def test_nothing_is_replayed_when_no_output_layer_feeds_a_loss():
    log = CallLog(N)
    counted(Words(squares), log)
    with pytest.raises(ValueError, match="output layer before the loss is not known"):
        fewer_targets(log, 0.2)
