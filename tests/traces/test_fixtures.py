"""Small traces of our own making, recorded on a CPU by record_fixtures.py."""

from pathlib import Path

import pytest

from lightning_perf.records import TraceRecord
from lightning_perf.traces import analyze

from . import record_fixtures

FOLDER = Path(__file__).parent / "fixtures"


def analyzed(name: str) -> TraceRecord:
    return analyze(FOLDER / name)


def function_line(function: object) -> str:
    code = function.__code__  # type: ignore[attr-defined]
    return f"record_fixtures.py:{code.co_firstlineno}"


def test_item_in_a_loop_is_placed_in_the_users_code() -> None:
    record = analyzed("cpu-item-loop.json.gz")
    line = function_line(record_fixtures.ItemLoop.forward)
    assert record.syncs.item_n == 120
    site = record.syncs.sites[0]
    assert (site.site, site.function, site.call, site.n) == (line, "forward", "aten::item", 120)
    assert site.idle_after_s is None  # a CPU has no device to leave idle
    loop = record.code_sites[0]
    assert (loop.site, loop.function) == (line, "forward")
    assert loop.max_repeats >= 40
    assert record.n_operators > 3 * 160
    assert record.operator_mean_s is not None
    assert record.operator_mean_s < 100e-6


def test_attention_written_out_is_placed_in_the_users_code() -> None:
    attention = analyzed("cpu-attention.json.gz").attention
    assert (attention.site, attention.n) == (function_line(record_fixtures.WrittenOutAttention.forward), 3)
    assert (attention.rows, attention.columns) == (128, 128)
    assert attention.share > 0.3


def test_plain_training_is_read_without_stacks_or_device() -> None:
    record = analyzed("cpu-plain.json.gz")
    assert not record.has_stacks
    assert record.has_shapes
    assert record.attention is None
    assert record.convolutions.bias_before_batch_norm_n == 3
    assert record.missing["device"] == "the trace is of a CPU run"
    assert record.kernels is record.idle is record.copies is record.device is None
    phases = {phase.name: phase.host_s for phase in record.phases}
    assert set(phases) >= {"data_loading", "forward", "backward", "optimizer"}
    assert sum(phases.values()) == pytest.approx(record.span_s, rel=1e-6)
    assert len(record.steps) == 3
    for step in record.steps:
        assert step.device_busy_s is None
        assert sum(step.categories.values()) == pytest.approx(step.duration_s, abs=1e-9)
        assert step.categories["cpu_op"] > 0.2 * step.duration_s


def test_forward_and_backward_are_separate_when_both_run_on_one_thread() -> None:
    operators = {operator.name: operator for operator in analyzed("cpu-plain.json.gz").operators}
    assert operators["aten::convolution_backward"].calls == 3
    assert operators["aten::conv2d"].host_total_s >= operators["aten::conv2d"].host_self_s
    assert sum(operator.host_self_s for operator in operators.values()) <= analyzed("cpu-plain.json.gz").span_s
