"""Operators are replayed without gradients that no optimizer uses."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from lightning_perf.probes.plain import storage_address
from lightning_perf.probes.replay.dropped import without_dropped

from .replaying import asked, logged, probe_of

batch = torch.rand(32, 24)


def layers(*widths):
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)))


def treated_of(model, *dropped, step=None):
    """Return the operators that the treatment changes: name, and how many tensors have a gradient before and after."""
    addresses = {storage_address(parameter) for one in dropped for parameter in one.parameters()}
    return [
        (
            work.calls[0].name,
            *(sum(spec.needs_grad for spec in bound[1] if hasattr(spec, "needs_grad")) for bound in both),
        )
        for work in without_dropped(logged(step or model, batch), addresses)
        for both in zip(work.as_is, work.treated, strict=True)
    ]


def test_layers_before_the_first_trained_one_have_no_gradients():
    model = layers(24, 20, 16, 12)
    assert treated_of(model, model[0], model[1]) == [
        ("aten::addmm", 2, 0),  # bias and weight; the batch has none
        ("aten::tanh", 1, 0),
        ("aten::addmm", 3, 0),
        ("aten::tanh", 1, 0),
        ("aten::addmm", 3, 2),  # the trained one
    ]


def test_layers_behind_a_trained_one_pass_gradients_on():
    model = layers(24, 20, 16)
    assert treated_of(model, model[1]) == [("aten::addmm", 3, 1)]


@pytest.mark.parametrize("widths", [(24, 20), (24, 20, 16)])
def test_trained_layers_are_left_alone(widths):
    assert treated_of(layers(*widths)) == []


def test_equal_layers_of_which_one_is_trained_count_as_trained():
    model = layers(24, 24, 24)
    assert treated_of(model, model[0]) == [("aten::addmm", 2, 0)]  # tanh is one call, used by the trained layer, too
    model = layers(24, 24, 24, 24)
    assert treated_of(model, model[0], model[1]) == [("aten::addmm", 2, 0)]


def test_a_layer_of_which_a_part_is_trained_counts_as_trained():
    model = layers(24, 20, 16)
    weight = nn.ParameterList([model[0][0].weight])
    assert treated_of(model, weight) == []


def test_one_of_two_branches_is_dropped():
    dropped, trained = layers(24, 20), nn.Sequential(nn.Linear(24, 16), nn.Sigmoid(), nn.Linear(16, 20))

    class Sum(nn.Module):
        def forward(self, x):
            return dropped(x) * 2 + trained(x)

    assert ("aten::add", 2, 1) in treated_of(dropped, dropped, step=Sum())


def test_masks_computed_in_the_step_need_no_gradient_of_equal_operators():
    first, second = nn.Linear(24, 24), nn.Linear(24, 24)

    class Masked(nn.Module):
        def forward(self, x):
            mask = (x > 0.5).float()
            return second(first(x) * mask) * mask

    assert ("aten::mul", 1, 0) in treated_of(first, first, second, step=Masked())


def test_gradients_of_inputs_are_needed():
    model = layers(24, 20, 16)

    class Attacked(nn.Module):
        def forward(self, x):
            return model(x.clone().requires_grad_())

    assert treated_of(model, model, step=Attacked()) == 2 * [("aten::addmm", 3, 1)]


def test_a_weight_that_the_step_wrote_to_is_needed():
    model = layers(24, 20, 16)

    class Clamped(nn.Module):
        def forward(self, x):
            model[0][0].weight.data.clamp_(-1, 1)
            return model(x)

    assert treated_of(model, model[1], step=Clamped()) == [("aten::addmm", 3, 1)]


def test_only_parameters_without_an_optimizer_are_dropped():
    model = layers(24, 96, 96, 16)
    log = logged(model, batch)
    for optimizer, has_dropped in ((torch.optim.SGD(model[2].parameters()), True), (None, False)):
        probe = probe_of(model, optimizer)
        probe.answer(asked("without-dropped"), log, 300.0)
        (replayed,) = probe.record().results
        assert (replayed.n_operators > 0) == has_dropped
        assert not has_dropped or replayed.speedup is not None or replayed.is_negligible
