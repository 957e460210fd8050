"""Recurrent layers over packed sequences are found, and replayed over the padded batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.replay.calls import CallLog
from lightning_perf.probes.replay.cheaper import cheaper, cheaper_operator
from lightning_perf.probes.replay.compare import HostWatch
from lightning_perf.probes.replay.operators import Arena, OperatorItem
from lightning_perf.probes.replay.treatments import Treated
from lightning_perf.probes.sampled_steps import packed_layers

from .replaying import CPU, asked, probe_of

LENGTHS = torch.tensor([3, 7, 2, 7, 5])
N_STEPS, N_IN, N_OUT = 9, 3, 4
KINDS = (nn.LSTM, nn.GRU, nn.RNN)


def batch_for(layer):
    batch = torch.rand(len(LENGTHS), N_STEPS, N_IN, generator=torch.Generator().manual_seed(1))
    return batch if layer.batch_first else batch.transpose(0, 1).contiguous()


def packed_for(layer, lengths=LENGTHS, is_sorted=False):
    return pack_padded_sequence(batch_for(layer), lengths, layer.batch_first, is_sorted)


def hidden_of(states):
    return states[0] if isinstance(states, tuple) else states


def last_state(layer, packed=None):
    _, states = layer(packed or packed_for(layer))
    return hidden_of(states)[-1]


def log_of(layer, run=last_state):
    """Return the log of a step with a layer, and what was found; what it returns is kept until the log is read."""
    log = CallLog(len(LENGTHS), (), [layer.parameters()])
    with ArithmeticCounter(layer, now_ns=now_ns, times_operators=True, log=log) as counter:
        counter.direction = "forward"
        result = run(layer)
        kept = result[1:] if isinstance(result, tuple) else ()
        loss = (result[0] if isinstance(result, tuple) else result).sum()
        if loss.requires_grad:
            loss.backward()
    assert not counter.failure
    assert not log.packed.failure
    del loss, result
    found = cheaper_operator(log)
    del kept
    return log, found


def both_of(log, layer):
    """Return what both sides of the replayed work compute with a layer's own weights, the longest sequence first."""
    (work,) = cheaper(log)
    ((packed, _, _),), ((padded, _, _),) = work.as_is, work.treated
    order = LENGTHS.sort(descending=True).indices
    batch = batch_for(layer).index_select(0 if layer.batch_first else 1, order)
    return packed(batch, *layer._flat_weights), padded(batch, *layer._flat_weights)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("is_batch_first", [True, False])
def test_last_states_are_those_at_the_lengths_of_a_padded_batch(kind, n_layers, is_batch_first):
    layer = kind(N_IN, N_OUT, n_layers, batch_first=is_batch_first)
    log, found = log_of(layer)
    assert (found.kind, found.function, found.n_operators) == ("packed", f"nn.{kind.__name__}", 1)
    assert (found.shape, found.size, found.better) == ((5, 9), 45, 24)
    assert found.site.startswith("test_packed.py:")
    assert found.total_s > 0
    (one,), (other,) = both_of(log, layer)
    assert one.shape == (5, N_OUT)
    torch.testing.assert_close(one, other)


def test_layers_keep_their_options():
    layer = nn.RNN(N_IN, N_OUT, nonlinearity="relu", bias=False)
    log, found = log_of(layer)
    assert found.kind == "packed"
    (one,), (other,) = both_of(log, layer)
    torch.testing.assert_close(one, other)


def padded_again(layer):
    states, _ = layer(packed_for(layer))
    return pad_packed_sequence(states, layer.batch_first)[0]


def states_as_packed(layer):
    states, _ = layer(packed_for(layer))
    return states.data * 2


@pytest.mark.parametrize("is_batch_first", [True, False])
def test_padding_of_states_is_zero_in_both(is_batch_first):
    layer = nn.LSTM(N_IN, N_OUT, batch_first=is_batch_first)
    log, _ = log_of(layer, padded_again)
    (one,), (other,) = both_of(log, layer)
    n_steps = one.shape[1 if is_batch_first else 0]
    assert n_steps == 7
    other, rest = other.split([n_steps, N_STEPS - n_steps], dim=1 if is_batch_first else 0)
    torch.testing.assert_close(one, other)
    assert not rest.count_nonzero()


def test_states_that_are_read_packed_are_packed_behind_the_layer():
    layer = nn.GRU(N_IN, N_OUT, batch_first=True)
    log, _ = log_of(layer, states_as_packed)
    (one,), (other,) = both_of(log, layer)
    assert one.shape == (24, N_OUT)
    torch.testing.assert_close(one, other)


def test_all_that_is_read_is_replayed():
    layer = nn.GRU(N_IN, N_OUT, batch_first=True)

    def run(layer):
        states, hidden = layer(packed_for(layer))
        return pad_packed_sequence(states, batch_first=True)[0].sum() + hidden[-1].sum()

    log, _ = log_of(layer, run)
    ones, others = both_of(log, layer)
    assert [one.shape for one in ones] == [(5, N_OUT), (5, 7, N_OUT)]
    assert [one.shape for one in others] == [(5, N_OUT), (5, N_STEPS, N_OUT)]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_sequences_that_were_packed_before_the_step_are_not_packed_in_the_replay(monkeypatch, is_sorted):
    layer = nn.LSTM(N_IN, N_OUT, batch_first=True)
    packed = packed_for(layer, LENGTHS.sort(descending=True).values, is_sorted)
    log, found = log_of(layer, lambda layer: last_state(layer, packed))
    assert (found.shape, found.size, found.better) == ((5, 7), 35, 24)
    (work,) = cheaper(log)
    monkeypatch.setattr("lightning_perf.probes.replay.packed.pack_padded_sequence", None)
    ((function, (spec, *_), _),), ((_, (padded, *_), _),) = work.as_is, work.treated
    assert (spec.shape, padded.shape) == ((24, N_IN), (5, 7, N_IN))
    (one,) = function(packed.data, *layer._flat_weights)
    torch.testing.assert_close(one, last_state(layer, packed))


def test_equal_calls_are_one_task_and_others_are_not():
    layer = nn.LSTM(N_IN, N_OUT, batch_first=True)
    shorter = LENGTHS.clamp(max=4)

    def run(layer):
        return sum(last_state(layer, packed_for(layer, each)).sum() for each in (LENGTHS, LENGTHS, shorter))

    log, found = log_of(layer, run)
    assert found.n_operators == 3
    assert sorted(work.n for work in cheaper(log)) == [1, 2]


@pytest.mark.parametrize("frozen_one", [0, 1])
def test_backward_belongs_to_the_layer_that_made_it(frozen_one):
    layers = nn.ModuleList([nn.GRU(N_IN, N_OUT, batch_first=True), nn.GRU(N_IN, N_OUT, batch_first=True)])
    layers[frozen_one].requires_grad_(False)
    log, _ = log_of(layers, lambda both: sum(last_state(each).sum() for each in both))
    frozen, trained = sorted((work for work in cheaper(log)), key=lambda work: work.calls[0].backward_ns)
    assert frozen.calls[0].backward_ns == 0 < trained.calls[0].backward_ns
    assert frozen.calls[0].ns > 0 < trained.calls[0].ns
    assert not any(one.requires_grad for one in frozen.as_is[0][1][1:])


def held_cell(layer):
    _, (hidden, cell) = layer(packed_for(layer))
    return hidden[-1].sum(), cell


def read_cell(layer):
    _, (hidden, cell) = layer(packed_for(layer))
    return hidden[-1].sum() + cell[-1].sum()


def detached_cell(layer):
    _, (hidden, cell) = layer(packed_for(layer))
    cell.detach().numpy().max()
    return hidden[-1].sum()


def lower_states(layer):
    _, (hidden, _) = layer(packed_for(layer))
    return hidden.transpose(0, 1).reshape(len(LENGTHS), -1)


def held_states(layer):
    _, (hidden, _) = layer(packed_for(layer))
    return hidden[-1].sum(), hidden


def nothing(layer):
    layer(packed_for(layer))
    return layer.weight_hh_l0.sum()


def in_16_bit(layer):
    with torch.autocast("cpu", torch.bfloat16):
        return last_state(layer)


def over_the_padded_batch(layer):
    states, _ = layer(batch_for(layer))
    return states[torch.arange(len(LENGTHS)), LENGTHS - 1]


def computed_again(layer):
    def run(data):
        states, _ = layer(PackedSequence(data, packed.batch_sizes))
        return states.data

    packed = packed_for(layer, LENGTHS.sort(descending=True).values)
    return checkpoint(run, packed.data.requires_grad_(), use_reentrant=True)


class Keeping(torch.autograd.Function):
    """Reads in its backward pass what its forward pass does not."""

    @staticmethod
    def forward(context, hidden, cell):
        context.save_for_backward(cell)
        return hidden.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.saved_tensors[0].sum(), None


def cell_read_in_backward(layer):
    _, (hidden, cell) = layer(packed_for(layer))
    return Keeping.apply(hidden, cell)


@pytest.mark.parametrize(
    ("run", "more"),
    [
        (read_cell, {}),
        (detached_cell, {}),
        (held_cell, {}),
        (cell_read_in_backward, {}),
        (lower_states, {"num_layers": 2}),
        (held_states, {"num_layers": 2}),
        (last_state, {"bidirectional": True}),
        (last_state, {"proj_size": 2}),  # where torch warns
        (nothing, {}),
        (in_16_bit, {}),
        (over_the_padded_batch, {}),
    ],
)
def test_layers_that_a_padded_batch_would_not_do_for_are_left_alone(run, more):
    assert log_of(nn.LSTM(N_IN, N_OUT, batch_first=True, **more), run)[1] is None


def test_a_layer_that_is_computed_again_counts_once():
    _, found = log_of(nn.LSTM(N_IN, N_OUT, batch_first=True), computed_again)
    assert (found.kind, found.n_operators) == ("packed", 1)


def test_a_layer_is_found_where_operators_are_not_timed():
    layer = nn.LSTM(N_IN, N_OUT, batch_first=True)
    log = CallLog(len(LENGTHS), (), [layer.parameters()])
    with ArithmeticCounter(layer, now_ns=now_ns, times_operators=False, log=log) as counter:
        counter.direction = "forward"
        last_state(layer).sum().backward()
    assert cheaper_operator(log).total_s == 0
    (work,) = cheaper(log)
    assert work.n_elements > 0


def test_an_error_within_the_users_forward_pass_ends_following(monkeypatch):
    def fail(*_):
        raise ValueError("no")

    monkeypatch.setattr(packed_layers, "_layer_of", fail)
    layer = nn.LSTM(N_IN, N_OUT, batch_first=True)
    log = CallLog(len(LENGTHS), (), [layer.parameters()])
    with ArithmeticCounter(layer, now_ns=now_ns, times_operators=True, log=log) as counter:
        counter.direction = "forward"
        last_state(layer).sum().backward()
    assert not counter.failure
    assert log.packed.failure == "ValueError: no"
    assert log.packed.runs == []


@pytest.mark.parametrize("run", [last_state, padded_again, states_as_packed])
def test_both_sides_run_forward_and_backward_with_gradients_for_the_weights(run):
    log, _ = log_of(nn.LSTM(N_IN, N_OUT, batch_first=True), run)
    (work,) = cheaper(log)
    item = OperatorItem(work, Arena(CPU, 2**12), Treated())
    for is_treated in (False, True):
        marks = item.run(is_treated, HostWatch(now_ns))
        assert len(marks) == 2
    weights = work.as_is[0][1][1:]
    assert weights == work.treated[0][1][1:]
    assert all(isinstance(one, nn.Parameter) and one.requires_grad for one in weights)


def test_replays_draw_no_random_number_of_the_trainings():
    log, _ = log_of(nn.LSTM(N_IN, N_OUT, 2, dropout=0.5, batch_first=True))
    probe = probe_of(nn.Linear(2, 2))
    before = torch.get_rng_state()
    probe.answer(asked("cheaper"), log, 300.0)
    (replayed,) = probe.record().results
    assert replayed.n_operators == 1
    assert replayed.speedup is not None, replayed.reason
    assert torch.equal(before, torch.get_rng_state())
