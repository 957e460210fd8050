"""Operators are replayed without gradients that no optimizer uses."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.replay.calls import CallLog
from lightning_perf.probes.replay.rewrites import without_dropped

from .replaying import asked, logged, probe_of

batch = torch.rand(32, 24)


def layers(*widths):
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)))


def treated_of(model, *dropped, step=None):
    """Return the operators that the treatment changes: name, and how many tensors have a gradient before and after."""
    unowned = [parameter for one in dropped for parameter in one.parameters()]
    return [
        (
            work.calls[0].name,
            *(sum(spec.needs_grad for spec in bound[1] if hasattr(spec, "needs_grad")) for bound in both),
        )
        for work in without_dropped(logged(step or model, batch, unowned=unowned))
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


def test_equal_layers_are_told_apart_when_only_one_is_trained():
    model = layers(24, 24, 24)
    before_the_trained = [("aten::addmm", 2, 0), ("aten::tanh", 1, 0)]
    assert treated_of(model, model[0]) == [*before_the_trained, ("aten::addmm", 3, 2)]
    model = layers(24, 24, 24, 24)
    assert treated_of(model, model[0], model[1]) == [*before_the_trained, ("aten::addmm", 3, 0), ("aten::addmm", 3, 2)]


def test_only_the_weight_is_dropped_when_the_bias_is_trained():
    model = layers(24, 20, 16)
    weight = nn.ParameterList([model[0][0].weight])
    assert treated_of(model, weight) == [("aten::addmm", 2, 1)]


def test_a_layer_that_a_second_input_goes_through_needs_no_gradient_there():
    texture = layers(24, 24, 24)
    generator = nn.Linear(24, 24)

    class Compared(nn.Module):
        def forward(self, x):
            return texture(generator(x)) - texture(x)

    assert treated_of(texture, texture, step=Compared()) == [
        ("aten::addmm", 3, 1),  # of what is generated
        ("aten::addmm", 3, 1),
        ("aten::addmm", 2, 0),  # of what it is compared with
        ("aten::tanh", 1, 0),
        ("aten::addmm", 3, 0),
        ("aten::sub", 2, 1),
    ]


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


def test_gradients_of_detached_results_are_needed():
    model = layers(24, 20)

    class Attacked(nn.Module):
        def forward(self, x):
            return model(x).detach().requires_grad_().exp()

    assert "aten::exp" not in [name for name, *_ in treated_of(model, model, step=Attacked())]


def test_a_weight_that_the_step_wrote_to_is_needed():
    model = layers(24, 20, 16)

    class Clamped(nn.Module):
        def forward(self, x):
            model[0][0].weight.data.clamp_(-1, 1)
            return model(x)

    assert treated_of(model, model[1], step=Clamped()) == [("aten::addmm", 3, 1)]


@pytest.mark.parametrize("has_dropped", [True, False])
def test_operators_are_replayed_when_their_gradients_are_dropped(has_dropped):
    model = layers(24, 96, 96, 16)
    unowned = [*model[0].parameters(), *model[1].parameters()] if has_dropped else []
    probe = probe_of(model)
    probe.answer(asked("without-dropped"), logged(model, batch, unowned=unowned), 300.0)
    (replayed,) = probe.record().results
    assert (replayed.n_operators > 0) == has_dropped
    assert not has_dropped or replayed.speedup is not None or replayed.is_negligible


class Adversaries(nn.Module):
    """The loss of one half reaches the parameters of the other, too."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = layers(24, 24), layers(24, 24)

    def forward(self, x):
        return self.judge(self.maker(x))


def test_backward_times_are_by_optimizer_and_by_the_line_of_the_pass():
    model = Adversaries()
    log = CallLog(len(batch), optimizers=[model.maker.parameters(), model.judge.parameters()])
    with ArithmeticCounter(model, now_ns=count(0, 10).__next__, times_operators=True, log=log) as counter:
        counter.direction = "forward"
        made = model.maker(batch)
        model.judge(made).mean().backward(retain_graph=True)
        model.judge(made.detach()).mean().backward()
    assert not counter.failure
    through_both, own = log.backward.records(log.reach.n_optimizers)
    assert (through_both.n, own.n) == (1, 1)
    assert through_both.site != own.site
    assert through_both.total_s > own.total_s
    assert through_both.only_s[0] > own.only_s[0] == 0  # the maker's layer
    assert through_both.only_s[1] == 0  # each operator of the judge has to pass the maker's gradient on
    assert own.only_s[1] > 0


def test_no_backward_times_are_recorded_when_operators_are_not_timed():
    model = layers(24, 20)
    log = CallLog(len(batch), optimizers=[model.parameters()])
    with ArithmeticCounter(model, log=log) as counter:
        counter.direction = "forward"
        model(batch).mean().backward()
    assert log.backward.records(1) == ()


def test_derivatives_of_derivatives_share_no_operators():
    net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))

    def shared(step):
        log = CallLog(8, optimizers=[net.parameters()])
        with ArithmeticCounter(net, now_ns=count(0, 10).__next__, times_operators=True, log=log) as counter:
            counter.direction = "forward"
            step(torch.rand(8, 2, requires_grad=True))
        assert not counter.failure
        return [each.shared for each in log.backward.records(1)]

    def gradient(value, points):
        return torch.autograd.grad(value.sum(), points, create_graph=True)[0]

    def laplacian(points):
        slopes = gradient(net(points), points)
        return [gradient(slopes[:, i], points) for i in range(2)]

    assert set(shared(laplacian)) == {0}
    assert shared(lambda points: [gradient(each, points) for each in net(points)])[0] > 0.6


def test_passes_of_one_line_are_counted_and_recomputed_operators_timed():
    model = layers(24, 24, 24)

    def passes(run):
        log = CallLog(len(batch), optimizers=[model.parameters()])
        with ArithmeticCounter(model, now_ns=count(0, 10).__next__, times_operators=True, log=log) as counter:
            counter.direction = "forward"
            for _ in range(2):
                run(batch).mean().backward()
        (found,) = log.backward.records(1)
        return found

    def shifted(x):
        for _ in range(50):
            x = x + 1
        return model(x)

    plain, recomputed = passes(shifted), passes(lambda x: checkpoint(shifted, x, use_reentrant=False))
    assert (plain.n, recomputed.n) == (2, 2)
    n_recomputed = round((recomputed.total_s - plain.total_s) / 10e-9)  # of 10 ns each
    assert n_recomputed >= 2 * 50
