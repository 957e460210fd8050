"""Operators whose results were known before are found in a step: constants, repetitions, frozen layers."""

from __future__ import annotations

import copy
import gc
import random
import weakref

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, OneHotCategoricalStraightThrough
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.sampled_steps import known_results
from lightning_perf.probes.sampled_steps.known_results import ResultTracker

N, WIDTH = 16, 8


class Net(nn.Module):
    """A frozen layer, a trained one, dropout, a buffer that stays as it is and a tensor that does, too."""

    def __init__(self, step):
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.trained, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.frozen_norm = nn.BatchNorm1d(WIDTH).requires_grad_(False)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("table", torch.randn(WIDTH, WIDTH))
        self.grid = torch.randn(WIDTH, WIDTH)
        self.step = step


def follow(step, net=None, batch=None, afterwards=lambda net: None, is_timed=True, is_batch_changed=False):
    """Run one step with backward; return what was found by kind."""
    net = net or Net(step)
    batch = torch.randn(N, WIDTH) if batch is None else batch
    tracker = ResultTracker(net, [batch, torch.zeros(N)], is_timed, is_batch_changed)
    with ArithmeticCounter(net, now_ns=_clock(), times_operators=is_timed, results=tracker) as counter:
        loss = step(net, batch)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            counter.direction = "backward"
            (loss if loss.dim() == 0 else loss.sum()).backward()
        del loss
    assert not counter.failure
    assert not tracker.failure
    tracker.end()
    afterwards(net)
    return {one.kind: one for one in tracker.found()}


def _clock():
    """Return a clock by which each operator takes the same time."""
    ticks = iter(range(10**9))
    return lambda: 10_000 * next(ticks)


def twice(net, x):
    loss = net.trained(net.trained(x).relu()).sum()
    return loss + net.trained(net.trained(x).relu()).square().sum()


def norm_twice(net, x):
    loss = net.norm(x).relu().exp().tanh().sum()
    return loss + net.norm(x).relu().exp().tanh().square().sum()


@pytest.mark.parametrize(
    ("step", "kind", "n"),
    [
        (lambda net, x: net.trained(x) @ torch.arange(64.0).view(8, 8).cos().sin(), "constant", 2),
        (lambda net, x: net.trained(x) @ (net.table @ net.grid), "constant", 1),
        (lambda net, x: net.trained(x) @ (net.frozen.weight * 2), "constant", 1),
        (lambda net, x: net.trained(x) * torch.triu(torch.ones_like(x)), "constant", 1),
        (twice, "twice", 3),
        (norm_twice, "twice", 4),
        (lambda net, x: net.trained(net.frozen(x).relu()), "frozen", 2),
        (lambda net, x: net.trained(torch.fft.rfft(x).abs()[:, :1].expand(-1, 8)), "frozen", 2),
        (lambda net, x: net.trained(net.frozen_norm.eval()(x)), "frozen", 1),
    ],
)
def test_operators_with_known_results_are_found(step, kind, n):
    found = follow(step)
    assert set(found) == {kind}
    assert found[kind].n_operators == n
    assert 0 < found[kind].forward_part <= 1


@pytest.mark.parametrize(
    "step",
    [
        lambda net, x: net.trained(net.dropout(net.frozen(x) * 0 + 1)),
        lambda net, x: net.dropout(net.trained(x)).sum() + 0 * net.dropout(net.trained.weight).sum(),
        lambda net, x: net.trained(torch.rand_like(x) @ net.trained.weight),
        lambda net, x: net.trained(torch.tensor([[1.0, 2.0]]).repeat(N, 4)).sum(),  # may come from data
        lambda net, x: net.trained(torch.zeros(N, WIDTH)),
        lambda net, x: net.trained(x).clone() + net.trained.bias.clone() + net.trained.bias.clone(),
        lambda net, x: checkpoint(net.trained, x, use_reentrant=False),
        lambda net, x: net.trained(torch.sparse_coo_tensor([[0], [0]], [1.0], (N, N)) @ net.trained(x)),
        lambda net, x: net.trained(torch.zeros_like(x.to_sparse()).to_dense() + x),
    ],
    ids=["dropout", "dropouts", "random", "literal", "factory", "clones", "checkpointing", "sparse", "sparse zeros"],
)
def test_other_operators_are_not(step):
    found = follow(step)
    assert not {"constant", "twice"} & set(found)


def test_batch_norm_that_trains_is_not_frozen():
    found = follow(lambda net, x: net.trained(net.frozen_norm(x)))
    assert "frozen" not in found


def test_results_of_numbers_read_from_the_batch_are_not_constant():
    found = follow(lambda net, x: net.trained(x) * torch.arange(float(x.abs().max())).sum().cos())
    assert set(found) == {"frozen"}


def test_content_that_was_written_to_is_another():
    def step(net, x):
        first = net.frozen(x).sum()
        x.mul_(2)
        return first + net.frozen(x).sum()

    assert "twice" not in follow(step)


def test_parts_of_a_tensor_are_not_the_same():
    assert "twice" not in follow(lambda net, x: net.trained(x[:8]).sum() + net.trained(x[8:]).sum())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda y: y.softmax(-1), lambda y: y.softmax(-2)),
        (lambda y: y.sum(-1), lambda y: y.sum(-2)),
        (lambda y: y.pow(-1.0), lambda y: y.pow(-2.0)),
    ],
)
def test_arguments_with_equal_hashes_are_not_the_same(one, other):
    assert hash(-1) == hash(-2)

    def step(net, x):
        y = net.trained(x)
        return one(y).exp().square().sum() + other(y).exp().square().sum()

    assert "twice" not in follow(step)


def test_conjugates_are_not_the_same():
    def step(net, x):
        z = torch.complex(net.trained(x), x)
        weights = torch.complex(net.trained.weight, net.table)
        return (z @ weights).abs().sum() + (z.conj() @ weights).abs().square().sum()

    assert "twice" not in follow(step)


def test_memory_that_is_used_again_holds_another_content():
    def step(net, x):
        total = 0
        for factor in (2.0, 3.0, 4.0):
            total = total + net.trained(x * factor).sum()
        return total

    assert "twice" not in follow(step)


def test_parameters_are_others_after_an_optimizers_step():
    net = Net(None)
    x = torch.randn(N, WIDTH)
    tracker = ResultTracker(net, x)
    counter = ArithmeticCounter(net, now_ns=_clock(), times_operators=True, results=tracker)
    for _ in range(2):
        with counter:
            net.trained(x).sum().backward()
        with torch.no_grad():
            net.trained.weight.add_(1)
    tracker.end()
    assert not [one for one in tracker.found() if one.kind == "twice"]


@pytest.mark.parametrize("change", [lambda net: net.table.mul_(0.9), lambda net: setattr(net, "table", net.table + 1)])
def test_tensors_that_change_between_steps_are_not_constant(change):
    def step(net, x):
        return net.trained(x) @ (net.table * 2)

    assert "constant" in follow(step)
    assert "constant" not in follow(step, afterwards=change)


def test_backward_of_repeated_operators_counts():
    found = follow(twice)["twice"]
    assert found.n_passes == 0
    assert 0 < found.backward_part < 0.5
    assert found.total_s > 0


def metric_first(net, x):
    with torch.no_grad():
        error = net.trained(net.trained(x).relu()).sum()
    return net.trained(net.trained(x).relu()).square().sum() + error


def detached_first(net, x):
    target = net.trained(net.trained(x).relu()).detach()
    return (net.trained(net.trained(x).relu()) - target).square().sum()


@pytest.mark.parametrize("step", [metric_first, detached_first])
def test_backward_that_is_needed_does_not_count(step):
    found = follow(step)["twice"]
    assert found.forward_part > 0
    assert found.backward_part == 0


def test_operators_without_a_node_do_not_get_the_backward_pass_of_another():
    def step(net, x):
        scores = net.trained(net.trained(x).relu())
        best = scores.argmax(-1)
        loss = scores.sum() + 0 * best.sum()
        again = net.trained(net.trained(x).relu())
        worst = again.argmin(-1)
        return loss + again.square().sum() + 0 * worst.sum()

    assert follow(step)["twice"].backward_part == pytest.approx(follow(twice)["twice"].backward_part, abs=0.05)


def test_content_written_without_an_operator_is_not_constant():
    def step(net, x):
        made = torch.empty(WIDTH, WIDTH)
        made.numpy()[:] = 1
        return net.trained(x) @ made.exp().tanh()

    assert follow(step) == {}


def test_an_observation_that_is_written_elsewhere_is_another():
    seen = torch.randn(N, WIDTH)

    def step(net, x):
        first = net.trained(net.trained(seen).relu()).sum()
        seen.numpy()[:] *= 2
        return first + net.trained(net.trained(seen).relu()).square().sum()

    assert follow(step) == {}


def test_features_whose_gradient_is_needed_are_not_frozen():
    def step(net, x):
        x.requires_grad_()
        energy = net.trained(x.square().exp()).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force.square().sum()

    assert not {"frozen", "constant"} & set(follow(step))


def test_points_whose_gradient_is_needed_are_not_constant():
    def step(net, x):
        points = torch.linspace(0, 1, WIDTH).requires_grad_()
        field = net.trained(points.square().exp()).sum()
        (slope,) = torch.autograd.grad(field, points, create_graph=True)
        return slope.square().sum() + net.trained(x).sum()

    assert "constant" not in follow(step)


def test_parameters_that_are_frozen_meanwhile_are_others_after_a_step():
    net = Net(None).requires_grad_(False)
    x = torch.randn(N, WIDTH)
    tracker = ResultTracker(net, x)
    counter = ArithmeticCounter(net, now_ns=_clock(), times_operators=True, results=tracker)
    with counter:
        first = net.trained(x)
    with torch.no_grad():
        net.trained.weight.add_(1)
    with counter:
        second = net.trained(x)
    tracker.end()
    assert not torch.equal(first, second)
    assert not [one for one in tracker.found() if one.kind == "twice"]


def test_attention_without_dropout_is_not_random():
    def step(net, x):
        h = net.frozen(x)[None, None]
        return net.trained(F.scaled_dot_product_attention(h, h, h)[0, 0])

    assert follow(step)["frozen"].n_operators == 2


def test_batch_norm_has_other_statistics_after_it_trained():
    def step(net, x):
        first = net.norm.eval()(x).relu().exp().tanh().sum()
        second = net.norm.train()(x).sum()
        return first + second + net.norm.eval()(x).relu().exp().tanh().square().sum()

    assert "twice" not in follow(step)


@pytest.mark.parametrize(
    ("step", "is_batch_changed", "is_per_item"),
    [
        (lambda net, x: net.trained(net.frozen(x).relu()), False, True),
        (lambda net, x: net.trained(net.frozen(x).relu()), True, False),
        (lambda net, x: torch.softmax(-torch.cdist(x[:8], x[:8]), -1) @ net.trained.weight, False, False),
        (lambda net, x: (x[:8] @ x[:8].mT) @ net.trained.weight, False, False),
        (lambda net, x: net.trained(net.frozen(x) * random.random()), False, False),
        (lambda net, x: net.trained((net.frozen(x)[:, :, None] * net.table[0]).relu()[:, :, 0]), False, False),
    ],
    ids=["layers", "changed", "distances", "products", "random", "larger"],
)
def test_results_are_kept_for_items_only_where_each_has_its_own(step, is_batch_changed, is_per_item):
    assert follow(step, is_batch_changed=is_batch_changed)["frozen"].is_per_item is is_per_item


def tracked(step, net, x):
    tracker = ResultTracker(net, x)
    with ArithmeticCounter(net, now_ns=_clock(), times_operators=True, results=tracker) as counter:
        loss = step(net, x).sum()
        counter.direction = "backward"
        loss.backward()
    tracker.end()
    assert tracker.has_found()
    return tracker


def test_only_what_another_step_has_too_is_constant():
    net, widths = Net(None), [1.0]

    def step(net, x):
        return net.trained(x) @ (net.table / widths[0]).exp() * (net.grid * 2)[:1]

    def n_constant(tracker):
        return next(one for one in tracker.found() if one.kind == "constant").n_operators

    first = tracked(step, net, torch.randn(N, WIDTH))
    assert n_constant(first) == 3
    first.confirm(tracked(step, net, torch.randn(N, WIDTH)))
    assert n_constant(first) == 3
    widths[0] = 3.0
    first.confirm(tracked(step, net, torch.randn(N, WIDTH)))
    assert n_constant(first) == 1


def test_without_clock_operations_count():
    found = follow(twice, is_timed=False)["twice"]
    assert found.forward_part == pytest.approx(0.5)
    assert found.total_s == 0


def test_bytes_of_frozen_results_are_those_that_trained_layers_read():
    found = follow(lambda net, x: net.trained(net.frozen(net.frozen(x)).relu()))["frozen"]
    assert found.kept_bytes == N * WIDTH * 4


def test_factorization_of_a_constant_matrix_is_constant(monkeypatch):
    monkeypatch.setattr(known_results, "now_ns", _clock())
    found = follow(lambda net, x: torch.linalg.solve(net.table, net.trained(x).mT))["constant"]
    assert found.n_operators == 1
    assert found.total_s > 0
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", None)
    found = follow(lambda net, x: torch.linalg.solve(net.trained.weight, net.trained(x).mT))
    assert "constant" not in found


def test_lines_of_both_calls_are_named():
    found, line = follow(twice)["twice"], twice.__code__.co_firstlineno
    assert (found.first_site, found.site) == (f"test_known_results.py:{line + 1}", f"test_known_results.py:{line + 2}")


def in_a_function(net, x):
    return net.trained(x).relu()


def from_two_lines(net, x):
    first = in_a_function(net, x)
    return first + in_a_function(net, x)


def test_line_in_the_function_that_is_called_twice_is_named():
    found, line = follow(from_two_lines)["twice"], in_a_function.__code__.co_firstlineno
    assert found.site == f"test_known_results.py:{from_two_lines.__code__.co_firstlineno + 2}"
    assert found.inner_site == f"test_known_results.py:{line + 1}"
    assert follow(twice)["twice"].inner_site == ""


def test_repetitions_below_one_line_are_not_the_users():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    mask, padding = torch.zeros(N, N), torch.zeros(2, N)

    def step(net, x):
        return encoder(net.trained(x).expand(2, -1, -1), mask, padding)

    for _ in range(2):  # a loop over batches is no loop in the step
        assert "twice" not in follow(step)


def in_a_comprehension(net, x):
    first = [net.trained, nn.ReLU()]
    return sum(part(x).sum() for part in (nn.Sequential(*first[:n]) for n in (1, 2, 2)))


def in_a_loop(net, x):
    total = 0
    for _ in range(3):
        total = total + net.trained(x).sum()
    return total


def in_a_while_loop(net, x):
    total = n = 0
    while n < 3:
        n, total = n + 1, total + net.trained(x).sum()
    return total


@pytest.mark.parametrize(
    ("step", "n", "line"), [(in_a_comprehension, 1, 2), (in_a_loop, 2, 3), (in_a_while_loop, 2, 3)]
)
def test_repetitions_in_a_loop_of_the_users_are_found(step, n, line):
    found = follow(step)["twice"]
    assert (found.first_site, found.site) == ("", f"test_known_results.py:{step.__code__.co_firstlineno + line}")
    assert found.backward_part > 0
    assert found.n_operators >= n


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_frozen_layers_are_fixed_in_any_layout(layout):
    layer = nn.Conv2d(3, 8, 3).to(memory_format=layout).requires_grad_(False)

    def step(net, x):
        images = net.trained(x).view(-1, 1).expand(-1, 108).reshape(-1, 3, 6, 6).contiguous(memory_format=layout)
        loss = layer(images).relu().sum()
        return loss + layer(images).relu().square().sum()

    net = Net(step)
    net.layer = layer
    assert follow(step, net)["twice"].n_operators >= 1


def in_two_generators(net, x):
    def run():
        for _ in range(1):
            yield net.trained(x).relu().sum()

    return sum(map(next, (run(), run())))


def in_an_outer_loop(net, x):
    def block():
        return [layer(x).sum() for layer in (net.trained, net.frozen)]

    total = 0
    for _ in range(2):
        total = total + sum(block())
    return total


def in_a_loop_with_checks(net, x):
    h = x
    for _ in range(3):
        weight = net.trained.weight.exp().tanh()
        torch._assert_async(torch.ones(()))  # an operator without a result
        h = h @ weight
    return h.sum()


def test_loop_is_the_one_that_repeats():
    line = in_a_loop_with_checks.__code__.co_firstlineno + 3
    assert follow(in_a_loop_with_checks)["twice"].site == f"test_known_results.py:{line}"
    assert "twice" not in follow(in_two_generators)
    line = in_an_outer_loop.__code__.co_firstlineno + 6
    assert follow(in_an_outer_loop)["twice"].site == f"test_known_results.py:{line}"


def test_repetitions_that_are_little_of_their_line_are_not_reported():
    def step(net, x):
        first = net.trained(x).sum()
        return first + net.norm(net.trained(x).relu().square().exp().tanh()).square().sum()

    assert "twice" not in follow(step)


def test_outermost_line_is_named_whose_time_is_all_of_that_kind():
    def features(net, x):
        h = net.frozen(x)
        return net.frozen(h.relu())

    def step(net, x):
        h = features(net, x)
        return net.trained(h)

    assert follow(step)["frozen"].site == f"test_known_results.py:{step.__code__.co_firstlineno + 1}"


def test_nothing_is_kept_alive_or_changed():
    net, x = Net(None), torch.randn(N, WIDTH)
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    alive = []

    def step(net, x):
        hidden = net.trained(x)
        alive.append(weakref.ref(hidden.untyped_storage()))
        return hidden

    with torch.random.fork_rng():
        follow(step, net, x)
    gc.collect()
    assert alive[0]() is None
    assert torch.equal(torch.get_rng_state(), state)
    after = net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_error_is_a_reason(monkeypatch):
    tracker = ResultTracker(Net(None), torch.zeros(1))
    monkeypatch.setattr(known_results, "Call", None)
    with ArithmeticCounter(nn.Identity(), results=tracker) as counter:
        F.relu(torch.ones(3) * 2)
    assert tracker.failure.startswith("TypeError")
    assert not counter.failure


def losses_of(net, x):
    h = net.trained(x)
    return [h.sum(), h.square().sum(), h.abs().sum()]


def follow_passes(go_back, net=None):
    """Run one step whose backward passes ``go_back`` makes; return what was found by kind."""
    net = net or Net(None)
    x = torch.randn(N, WIDTH)
    tracker = ResultTracker(net, x)
    counter = ArithmeticCounter(net, now_ns=_clock(), times_operators=True, results=tracker)
    with counter:
        losses = losses_of(net, x)
    go_back(counter, net, losses)
    tracker.end()
    assert not tracker.failure
    return {one.kind: one for one in tracker.found()}


def each_by_itself(counter, net, losses):
    with counter:
        for loss in losses:
            loss.backward(retain_graph=True)


def all_at_once(counter, net, losses):
    with counter:
        sum(losses).backward()


def with_steps_between(counter, net, losses):
    for loss in losses:
        with counter:
            loss.backward(retain_graph=True)


def clearing_between(counter, net, losses):
    with counter:
        for loss in losses:
            net.zero_grad()
            loss.backward(retain_graph=True)


def saving_between(counter, net, losses):
    with counter:
        for loss in losses:
            loss.backward(retain_graph=True)
            net.saved = net.trained.weight.grad.clone()


def of_other_parameters(counter, net, losses):
    with counter:
        losses[0].backward(retain_graph=True, inputs=[net.trained.weight])
        losses[1].backward(inputs=[net.trained.bias])


def with_a_penalty(counter, net, losses):
    with counter:
        losses[1].backward(create_graph=True)
        net.trained.weight.grad.square().sum().backward()


def without_accumulating(counter, net, losses):
    with counter:
        for loss in losses:
            torch.autograd.grad(loss, net.trained.weight, retain_graph=True)


def test_passes_through_the_same_operators_are_found():
    found = follow_passes(each_by_itself)["backward"]
    assert (found.n_passes, found.n_operators) == (3, 1)
    assert 0 < found.backward_part < 2 / 3
    assert found.forward_part == 0
    assert found.site == f"test_known_results.py:{each_by_itself.__code__.co_firstlineno + 3}"


@pytest.mark.parametrize(
    "go_back",
    [
        all_at_once,
        with_steps_between,
        clearing_between,
        saving_between,
        of_other_parameters,
        with_a_penalty,
        without_accumulating,
    ],
)
def test_other_passes_are_not(go_back):
    assert "backward" not in follow_passes(go_back)


@pytest.mark.parametrize("reentrant", [False, True])
def test_operators_that_checkpointing_calls_again_are_found(reentrant):
    def step(net, x):
        return checkpoint(lambda x: net.dropout(net.trained(x).relu()), x.requires_grad_(), use_reentrant=reentrant)

    found = follow(step)["recomputed"]
    assert found.n_operators >= 2
    assert found.kept_bytes >= 2 * N * WIDTH * 4
    assert found.backward_part > 0
    assert found.site == f"test_known_results.py:{step.__code__.co_firstlineno + 1}"


def test_checkpointed_operators_are_at_the_line_that_checkpoints():
    def layers(net, x):
        return net.dropout(net.trained(x).relu())

    def step(net, x):
        return checkpoint(layers, net, x.requires_grad_(), use_reentrant=False)

    assert follow(step)["recomputed"].site == f"test_known_results.py:{step.__code__.co_firstlineno + 1}"


def test_double_backward_is_not_checkpointing():
    def step(net, x):
        loss = net.trained(x).square().sum()
        (gradient,) = torch.autograd.grad(loss, net.trained.weight, create_graph=True)
        return loss + gradient.square().sum()

    assert not {"recomputed", "backward"} & set(follow(step))


def slope(value, points):
    return torch.autograd.grad(value.sum(), points, create_graph=True)[0]


def derivatives(net, x):
    """Two derivatives, each by a backward pass of its own through the same layers."""
    a, b = (x[:, :4].clone().requires_grad_(), x[:, 4:].clone().requires_grad_())
    value = net.trained(torch.cat([a, b], 1)).tanh()
    first = slope(value, a)
    second = slope(value, b)
    return first.square().sum() + second.square().sum()


def derivatives_at_once(net, x):
    a, b = (x[:, :4].clone().requires_grad_(), x[:, 4:].clone().requires_grad_())
    value = net.trained(torch.cat([a, b], 1)).tanh()
    first, second = torch.autograd.grad(value.sum(), (a, b), create_graph=True)
    return first.square().sum() + second.square().sum()


def test_derivatives_that_are_computed_again_are_found():
    found = follow(derivatives)
    assert found["twice"].n_operators >= 3
    assert found["twice"].forward_part > 0.1
    assert found["twice"].backward_part > 0.1
    assert found["twice"].n_passes == 2
    assert "unused" not in found
    once = follow(derivatives_at_once)
    assert not {"twice", "unused"} & set(once)


def laplacian(net, x):
    """The second derivatives in a direction each: only what the functions' backward passes repeat is the same."""
    points = x[:, :4].clone().requires_grad_()
    hidden = torch.sin(nn.functional.linear(points, net.trained.weight[:, :4]))
    first = slope(nn.functional.silu(hidden @ net.trained.weight), points)
    second = slope(first[:, 0], points)
    third = slope(first[:, 1], points)
    return second.square().sum() + third.square().sum()


def of_each_output(net, x):
    points = x.clone().requires_grad_()
    values = nn.functional.silu(net.trained(torch.sin(net.trained(points))))
    return sum(slope(values[:, place], points).square().sum() for place in range(3))


class Recomputed(torch.autograd.Function):
    """Checkpointing by hand."""

    @staticmethod
    def forward(context, x, layer):
        context.save_for_backward(x)
        context.layer = layer
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(context, gradient):
        with torch.enable_grad():
            x = context.saved_tensors[0].detach().requires_grad_()
            return *torch.autograd.grad(context.layer(x), (x,), gradient), None


@pytest.mark.parametrize(
    "step",
    [
        laplacian,
        of_each_output,
        lambda net, x: Recomputed.apply(net.norm(x), lambda one: net.trained(one).tanh().exp().sin()).sum(),
    ],
)
def test_what_backward_passes_repeat_by_themselves_does_not_count(step):
    assert "twice" not in follow(step)


def test_layers_that_are_differentiated_in_another_thread_are_used(monkeypatch):
    """As on a device, whose backward passes run in a thread of their own."""
    get_ident = known_results.threading.get_ident
    monkeypatch.setattr(
        known_results.threading, "get_ident",
        lambda: get_ident() + (torch._C._current_autograd_node() is not None),
    )  # fmt: skip

    def step(net, x):
        points = x.clone().requires_grad_()
        value = net.trained(points).tanh() @ net.table
        (gradient,) = torch.autograd.grad(value, points, torch.ones_like(value), create_graph=True)
        return gradient.square().sum()

    assert "unused" not in follow(step)


def test_both_calls_of_one_line_count():
    def step(net, x):
        return (net.trained(x).relu().exp() + net.trained(x).relu().exp().square()).sum()

    found = follow(step)["twice"]
    assert found.n_operators == 3
    assert found.site.startswith("test_known_results.py:")
    assert found.first_site == ""


def keep(net, x):
    net.kept = net.trained(x)
    return net.norm(x).sum()


def add_up(net, x):
    total = torch.zeros(N, WIDTH)
    total += net.trained(x)
    net.total = total
    return net.norm(x).sum()


@pytest.mark.parametrize(
    ("step", "n"),
    [
        (lambda net, x: (net.trained(net.trained(x).relu()), net.norm(x).sum())[1], 3),
        (lambda net, x: (net.trained(x) @ net.trained(x).mT, net.norm(x).sum())[1], 3),
    ],
)
def test_results_that_nothing_uses_are_found(step, n):
    assert follow(step)["unused"].n_operators == n


@pytest.mark.parametrize(
    "step",
    [
        lambda net, x: net.trained(x).sum() + net.norm(x).sum(),
        lambda net, x: (net.trained(x).detach().numpy().mean(), net.norm(x).sum())[1],
        lambda net, x: (net.trained(x).mean().item(), net.norm(x).sum())[1],
        lambda net, x: (net.trained(x).mean(0).tolist(), net.norm(x).sum())[1],
        lambda net, x: (str(net.trained(x).mean(0)), net.norm(x).sum())[1],
        lambda net, x: (net.table.copy_(net.trained(x)[:8].detach()), net.norm(x).sum())[1],
        keep,
        add_up,
    ],
    ids=["losses", "numpy", "number", "list", "print", "buffer", "kept", "sum"],
)
def test_results_that_something_uses_are_not(step):
    assert "unused" not in follow(step)


def test_nothing_is_unused_without_a_backward_pass():
    assert "unused" not in follow(lambda net, x: net.trained(x).relu().detach())


def test_checks_of_distributions_are_found():
    def policy(net, x, validate_args=True):  # torch.compile switches the default off for the whole process
        mean = net.trained(x)
        covariance = torch.eye(WIDTH) + torch.diag(net.trained.bias.square())
        return -MultivariateNormal(mean, covariance, validate_args=validate_args).log_prob(mean.detach()).mean()

    found = follow(policy)
    assert found["checks"].n_operators > 4
    assert 0 < found["checks"].forward_part < 1
    assert found["checks"].site.startswith("test_known_results.py:")
    assert "checks" not in follow(lambda net, x: policy(net, x, validate_args=False))


def test_what_a_distribution_keeps_of_its_checks_does_not_count():
    def sample(net, x):
        logits = net.trained(x)
        return OneHotCategoricalStraightThrough(logits=logits, validate_args=True).rsample() * logits

    found = follow(sample)
    assert found["checks"].backward_part == 0


def test_checks_of_observed_values_are_found():
    def observe(net, x):
        mean = net.trained(x)
        found = Normal(mean, torch.ones_like(mean), validate_args=False)
        found._validate_args = True
        return found.log_prob(x).mean()

    assert follow(observe)["checks"].n_operators >= 1


def penalized(weight):
    def step(net, x):
        x = x.clone().requires_grad_()
        y = net.trained(net.trained(x).tanh()).sum(1)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.square().mean() + weight * (slope.norm(dim=1) - 1).square().mean()

    return step


def test_layers_that_train_their_statistics_are_not_superfluous() -> None:
    found = follow(lambda net, x: net.trained(x).square().mean() + 0 * net.norm(net.trained(x).exp()).tanh().sum())
    assert found["zeroed"].n_operators == 2  # tanh and sum


def test_what_is_multiplied_by_zero_is_found_with_its_derivatives() -> None:
    found = follow(penalized(0.0))["zeroed"]
    assert found.n_operators == 7  # three of the derivative, norm, difference, square and mean
    assert found.backward_part > 0.3
    assert found.site.startswith("test_known_results.py:")


@pytest.mark.parametrize(
    "step",
    [
        penalized(0.1),
        lambda net, x: (y := net.trained(x)).square().mean() + 0.0 * y.sum(),
        lambda net, x: (y := net.trained(x)).square().mean() + y.abs().mean(),
        lambda net, x: net.trained(x).square().mean() + float(y := net.trained(x).tanh().mean()) + 0.0 * y,
    ],
)
def test_what_something_else_uses_is_not_taken_for_zero(step) -> None:
    found = follow(step).get("zeroed")
    assert found is None or found.n_operators <= 1
