"""Recurrent layers over packed sequences, and the same over the padded batch."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lightning_perf.probes.sampled_steps.packed_layers import Layer, PackedRun, Packing, Use

from .calls import Call, CallLog, TensorSpec
from .functions import Bound, Cheaper, Work

Tensor = torch.Tensor

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu,
}  # fmt: skip


class _Task(NamedTuple):
    """What equal runs do: their layer, its packed sequences, and what is read of the results."""

    layer: Layer
    packing: Packing
    uses: frozenset[Use]

    @property
    def is_batch_first(self) -> bool:
        return bool(dict(self.layer.options)["batch_first"])

    @property
    def lengths(self) -> Tensor:
        """Lengths of the sequences, the longest first."""
        sizes = torch.tensor(self.packing.batch_sizes, device="cpu")
        return (sizes > torch.arange(self.packing.batch_sizes[0], device="cpu")[:, None]).sum(1)

    @property
    def padded_shape(self) -> tuple[int, int, int]:
        n, n_steps = self.packing.batch_sizes[0], self.packing.n_steps
        return *((n, n_steps) if self.is_batch_first else (n_steps, n)), self.packing.n_features


def packed_layers(log: CallLog) -> Iterator[Cheaper]:
    """Find recurrent layers in one direction over packed sequences, of which a padded batch gives all that is read."""
    tasks: dict[_Task, list[PackedRun]] = {}
    for run in log.packed.runs:
        tasks.setdefault(_Task(run.layer, run.packing, frozenset(run.uses)), []).append(run)
    for task, runs in tasks.items():
        packing, layer = task.packing, task.layer
        n_sequences, n_valid = packing.batch_sizes[0], sum(packing.batch_sizes)
        shape = task.padded_shape
        padded = TensorSpec((), (), packing.dtype, packing.needs_grad, -1).dense(shape)
        data = padded if packing.is_made_here else padded.dense((n_valid, packing.n_features))
        weights = [padded.dense(size)._replace(needs_grad=needs_grad) for size, needs_grad in layer.weights]
        call = Call(-1, None, (data, *weights), {}, ())
        call.n, call.site, call.has_backward = len(runs), runs[0].site, any(run.backward_ns for run in runs)
        call.ns, call.backward_ns = sum(run.ns for run in runs), sum(run.backward_ns for run in runs)
        call.n_out = (1 + len(task.uses)) * shape[0] * shape[1] * dict(layer.options)["hidden_size"]
        as_is: Bound = partial(_over_packed, task, task.lengths), (data, *weights), {}
        treated: Bound = partial(_over_padded, task, task.lengths), (padded, *weights), {}
        work, kind = Work((call,), (as_is,), (treated,)), f"nn.{layer.kind.__name__}"
        of_all = n_sequences * packing.n_steps
        yield Cheaper("packed", work, call.site, (n_sequences, packing.n_steps), of_all, n_valid, kind)


def with_weights(work: Work) -> Work:
    """Return such work with a new layer's weights: random numbers of another size would saturate its cells."""
    task: _Task = work.as_is[0][0].args[0]  # type: ignore[attr-defined]
    layer = task.layer
    made = layer.kind(**dict(layer.options), device=layer.device, dtype=task.packing.dtype)
    weights = [one.requires_grad_(spec[1]) for one, spec in zip(made._flat_weights, layer.weights, strict=True)]

    def with_new(side: tuple[Bound, ...]) -> tuple[Bound, ...]:
        return tuple((function, (args[0], *weights), {}) for function, args, _ in side)

    return work._replace(as_is=with_new(work.as_is), treated=with_new(work.treated))


def _run(task: _Task, *given: Any) -> tuple[Tensor, Tensor]:
    """Run the layer on its data; return its states, and the last ones of all layers."""
    *data, weights = given
    options = dict(task.layer.options)
    n_layers, size, n = options["num_layers"], options["hidden_size"], task.packing.batch_sizes[0]
    first: Any = data[0].new_zeros(n_layers, n, size)
    if task.layer.mode == "LSTM":
        first = [first, data[0].new_zeros(n_layers, n, size)]
    arguments = options["bias"], n_layers, float(options["dropout"]), task.layer.is_training, False
    more = () if len(data) > 1 else (task.is_batch_first,)
    states, last, *_ = _FUNCTIONS[task.layer.mode](*data, first, weights, *arguments, *more)
    return states, last


def _over_packed(task: _Task, lengths: Tensor, data: Tensor, *weights: Tensor) -> list[Tensor]:
    packing = task.packing
    if packing.is_made_here:
        given = pack_padded_sequence(data, lengths, task.is_batch_first, packing.is_sorted)
    else:
        order = None if packing.is_sorted else torch.arange(len(lengths), device=data.device)
        given = PackedSequence(data, torch.tensor(packing.batch_sizes, device="cpu"), order, order)
    states, last = _run(task, given.data, given.batch_sizes, weights)
    if given.unsorted_indices is not None:
        last = last.index_select(1, given.unsorted_indices)
    results = {"last": lambda: last[-1], "packed": lambda: states,
               "padded": lambda: pad_packed_sequence(given._replace(data=states), task.is_batch_first)[0]}  # fmt: skip
    return [results[use]() for use in sorted(task.uses)]


def _over_padded(task: _Task, lengths: Tensor, data: Tensor, *weights: Tensor) -> list[Tensor]:
    states, _ = _run(task, data, weights)
    is_first, is_sorted = task.is_batch_first, task.packing.is_sorted
    sequences = torch.arange(len(lengths), device="cpu")
    results = {"last": lambda: states[(sequences, lengths - 1) if is_first else (lengths - 1, sequences)],
               "packed": lambda: pack_padded_sequence(states, lengths, is_first, is_sorted).data,
               "padded": lambda: _masked(states, lengths, int(is_first))}  # fmt: skip
    return [results[use]() for use in sorted(task.uses)]


def _masked(states: Tensor, lengths: Tensor, time: int) -> Tensor:
    """Return states with zeros as padding, as ``pad_packed_sequence`` gives them."""
    steps, lengths = torch.arange(states.shape[time], device=states.device), lengths.to(states.device)
    is_padding = steps >= lengths[:, None] if time else steps[:, None] >= lengths
    return states.masked_fill(is_padding[..., None], 0.0)
