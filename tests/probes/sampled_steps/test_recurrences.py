"""Whether the iterations of a loop over a tensor depend on one another."""

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from lightning_perf.probes.sampled_steps.operator_records import sync_calls
from lightning_perf.probes.sampled_steps.operator_tracer import OperatorTracer

N = 30
X = torch.randn(4, N, 8)
CELL, LAYER = nn.GRUCell(8, 8), nn.Linear(8, 8)


def cells() -> None:
    h = torch.zeros(4, 8)
    for t in range(N):
        h = CELL(X[:, t], h)


def average() -> None:
    h = torch.zeros(4, 8)
    for t in range(N):
        h = 0.9 * h + 0.1 * X[:, t]


def average_of_slices() -> None:
    h = torch.zeros(3, 8)
    for t in range(N):
        h = 0.9 * h + 0.1 * X[1:, t]  # a slice and a selection, by one instruction


def average_in_place() -> None:
    h = torch.zeros(4, 8)
    for t in range(N):
        h.mul_(0.9).add_(0.1 * X[:, t])


def columns_of_one_tensor() -> None:
    y = X.clone()
    for t in range(1, N):
        y[:, t] = (y[:, t - 1] + X[:, t]).tanh()


def growing_sequence() -> None:
    out = X[:, :1]
    for t in range(1, N):
        out = torch.cat([out, (LAYER(out[:, -1]) + X[:, t]).unsqueeze(1)], 1)


def total() -> None:
    loss = torch.zeros(())
    for t in range(N):
        loss = loss + (LAYER(X[:, t]) - 1).square().mean()


def total_of_two_terms() -> None:
    loss = torch.zeros(())
    for t in range(N):
        loss = loss + LAYER(X[:, t]).square().mean() + 0.1 * LAYER.weight.abs().sum()
        loss += X[:, t].mean()


def total_after_layers() -> None:
    h = X
    for _ in range(5):
        h = LAYER(h).tanh().exp().neg()
    loss = torch.zeros(())
    for t in range(N):
        loss = loss + h[:, t].mean()


def outputs() -> None:
    torch.stack([LAYER(X[:, t]).tanh() for t in range(N)])


def rows_of_one_tensor() -> None:
    y = X.clone()
    for t in range(N):
        y[:, t] = LAYER(X[:, t]).tanh()


def counts() -> None:
    n = torch.zeros(N)
    for t in range(N):
        n[t] += X[0, t].sum()


def prefixes() -> None:
    for t in range(1, N):
        h = torch.zeros(4, 8)
        for step in X[:, :t].unbind(1):
            h = CELL(step, h)


RECURRENCES = (cells, average, average_of_slices, average_in_place, columns_of_one_tensor, growing_sequence)


@pytest.mark.parametrize(
    ("run", "is_recurrence"),
    [
        *((each, True) for each in RECURRENCES),
        *(
            (each, False)
            for each in (total, total_of_two_terms, total_after_layers, outputs, rows_of_one_tensor, counts, prefixes)
        ),
    ],
)
def test_a_loop_is_a_recurrence_when_an_iteration_computes_with_the_one_before(
    run: Callable[[], None], is_recurrence: bool
) -> None:
    tracer = OperatorTracer(torch.device("cpu"), 0.0, lambda: "forward", time.perf_counter_ns)
    tracer.open()
    try:
        run()
    finally:
        tracer.close()
    assert tracer.failure == ""
    record = sync_calls([tracer], "cpu")
    assert record is not None
    assert [loop.is_recurrence for loop in record.loops] == [is_recurrence]


def test_lines_of_a_loop_are_those_of_its_body() -> None:
    def step() -> None:
        loss = X.sum()
        for t in range(N):
            loss = loss + X[:, t].mean()
        loss.sqrt()

    tracer = OperatorTracer(torch.device("cpu"), 0.0, lambda: "forward", time.perf_counter_ns)
    tracer.open()
    try:
        step()
    finally:
        tracer.close()
    record = sync_calls([tracer], "cpu")
    assert record is not None
    first = step.__code__.co_firstlineno
    assert [(loop.first_line, loop.lines) for loop in record.loops] == [(first, (first + 2, first + 3))]
