"""Traces as text."""

from __future__ import annotations

import msgspec
from rules.session_builder import build_trace

from lightning_perf.records import MatrixShape, Startup
from lightning_perf.reports.console import to_text
from lightning_perf.reports.document import Table
from lightning_perf.reports.render.markdown import render
from lightning_perf.reports.sections.trace import operator_parts, trace_documents, trace_facts


def test_trace_is_drawn_when_steps_have_different_categories_and_start_up_has_no_calls() -> None:
    first, second = build_trace({}).steps[:2]
    other = msgspec.structs.replace(second, categories={"memcpy": 0.1})
    record = msgspec.structs.replace(
        build_trace({}), steps=(first, other), startup=Startup(total_s=1.0, span_s=2.0), whole=None
    )
    assert "kernel" in to_text(trace_documents([record]), width=100)
    assert "startup" not in to_text(trace_documents([record]), width=100)


def test_share_below_a_tenth_of_a_percent_is_text_when_a_heading_holds_it() -> None:
    quiet = tuple(msgspec.structs.replace(step, device_busy_s=1e-6) for step in build_trace({}).steps)
    text = render(trace_documents([msgspec.structs.replace(build_trace({}), steps=quiet)])[0])
    assert "device busy &lt;0.1 %" in text


def test_bar_fits_its_column_when_a_category_is_longer_than_its_step() -> None:
    steps = tuple(
        msgspec.structs.replace(step, duration_s=1e-3, categories={"kernel": 1.0}) for step in build_trace({}).steps
    )
    text = to_text(trace_documents([msgspec.structs.replace(build_trace({}), steps=steps)]), width=100)
    assert max(map(len, text.splitlines())) < 200


def test_counts_are_of_the_trace_when_it_has_no_steps() -> None:
    facts = dict(trace_facts(build_trace({"n_steps": 0})))
    assert "in the trace" in facts["kernels"]
    assert "per step" in dict(trace_facts(build_trace({})))["kernels"]


def test_shapes_have_no_columns_of_the_device_when_the_trace_has_none() -> None:
    shape = MatrixShape(operator="aten::mm", shapes="[8,64] x [64,256]", dtype="float", calls=3, host_s=1e-3,
                        device_s=0.0, is_aligned=True)  # fmt: skip
    for is_cpu in (False, True):
        record = msgspec.structs.replace(build_trace({}, is_cpu=is_cpu), matrix_shapes=(shape,))
        [shapes] = [part for part in operator_parts(record) if isinstance(part, Table) and part.key == "matrix-shapes"]
        assert ("fits tensor cores" in shapes.heads, "device" in shapes.heads) == (not is_cpu, not is_cpu)


def test_title_calls_the_device_unnamed_when_the_trace_does_not_name_it() -> None:
    record = msgspec.structs.replace(build_trace({}), device_name=None)
    assert "unnamed device" in trace_documents([record])[0].title
    assert "no device" in trace_documents([build_trace({"device_name": None}, is_cpu=True)])[0].title
