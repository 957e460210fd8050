"""For any trace, every rule has an outcome, and gains and claims are within bounds."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lightning_perf.records import Session
from lightning_perf.rules.engine import diagnose, diagnose_trace
from lightning_perf.rules.findings import MAX_RECOVERABLE_SHARE
from tests.fuzzing import FUZZ

from .session_builder import build_session, build_trace

SECONDS = st.floats(0.0, 10.0) | st.sampled_from([0.0, 5e-324, 1e-300, 1e6])
SHARE = st.floats(0.0, 1.0)
COUNT = st.integers(0, 100_000)
KINDS = ("matmul", "convolution", "attention", "elementwise", "normalization", "copy", "communication", "optimizer")
PHASES = ("data_loading", "forward", "backward", "optimizer", "other")
CAUSES = ("loader", "sync", "pageable_copy", "transfer", "device_to_host", "allocator", "communication", "launch")


def _some(**fields: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=fields)


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


STEP = st.fixed_dictionaries(
    {"name": st.just("s"), "duration_s": SECONDS, "device_busy_s": _maybe(SECONDS), "busy_fraction": _maybe(SHARE),
     "categories": st.dictionaries(st.sampled_from(["kernel", "other", "cpu_op"]), SECONDS, max_size=3),
     "host_needed_s": _maybe(SECONDS)}
)  # fmt: skip
SHAPE = st.fixed_dictionaries(
    {"operator": st.just("aten::bmm"), "shapes": st.sampled_from(["[2,3,4] x [2,4,5]", "", "x"]),
     "dtype": st.sampled_from(["float", "c10::Half", "char", ""]), "calls": COUNT, "host_s": SECONDS,
     "device_s": SECONDS, "m": _maybe(COUNT), "n": _maybe(COUNT), "k": _maybe(COUNT)}
)  # fmt: skip
SITE = st.fixed_dictionaries(
    {"site": st.just("f.py:1"), "function": st.just("f"), "n_operators": st.integers(1, 10**6), "host_s": SECONDS,
     "device_s": SECONDS, "top_operator": st.just("aten::add"), "top_n": COUNT, "max_repeats": COUNT}
)  # fmt: skip
TRACE = _some(
    steps=st.lists(STEP, max_size=3),
    whole=_maybe(STEP),
    span_s=SECONDS,
    device_name=st.sampled_from([None, "Tesla V100", "AMD Instinct MI300X", "?"]),
    n_kernels=COUNT,
    n_operators=COUNT,
    operator_mean_s=_maybe(SECONDS),
    has_stacks=st.booleans(),
    has_shapes=st.booleans(),
    idle=_maybe(_some(host_wait_by_phase_s=st.dictionaries(st.sampled_from(PHASES), SECONDS, max_size=5))),
    device=_maybe(_some(
        kind=st.sampled_from(["cuda", "rocm"]), busy_s=SECONDS, span_s=SECONDS, compute_s=SECONDS,
        capability=st.sampled_from([None, "6.0", "7.5", "9.0", "x"]))),
    communication=_maybe(st.fixed_dictionaries({
        "total_s": SECONDS, "exposed_s": SECONDS, "overlap_fraction": _maybe(SHARE), "n": COUNT,
        "n_per_step": SECONDS, "small_per_step": _maybe(SECONDS), "median_s": _maybe(SECONDS),
        "least_exposed_s": _maybe(SECONDS)})),
    copies=_maybe(_some(
        h2d_s=SECONDS, h2d_n=COUNT, h2d_pageable_n=COUNT, h2d_exposed_s=SECONDS, h2d_pageable_exposed_s=SECONDS,
        d2h_exposed_s=SECONDS, d2h_n=COUNT, h2d_bytes=_maybe(COUNT))),
    syncs=_maybe(_some(n=COUNT, wait_s=SECONDS, idle_after_s=_maybe(SECONDS), blocking_copy_wait_s=SECONDS)),
    kernels=_maybe(_some(
        median_s=_maybe(SECONDS), matrix_s=SECONDS, matrix_tensor_core_fraction=_maybe(SHARE), layout_s=SECONDS,
        matrix_precisions=st.dictionaries(st.sampled_from(["fp32", "bf16", "tf32"]), SECONDS, max_size=3),
        kinds=st.dictionaries(
            st.sampled_from(KINDS), st.fixed_dictionaries({"total_s": SECONDS, "n": COUNT, "share": SHARE})))),
    operators=st.just([]),
    allocator=_maybe(_some(n=COUNT, total_s=SECONDS, exposed_s=SECONDS)),
    loader=_maybe(st.fixed_dictionaries({
        "total_s": SECONDS, "exposed_s": SECONDS, "n": COUNT, "p50_s": SECONDS, "p95_s": SECONDS, "max_s": SECONDS,
        "stalled_fraction": SHARE})),
    phases=st.lists(st.fixed_dictionaries(
        {"name": st.sampled_from(PHASES), "host_s": SECONDS, "device_s": SECONDS, "n_kernels": COUNT}), max_size=5),
    matrix_shapes=st.lists(SHAPE, max_size=3),
    convolutions=_maybe(st.fixed_dictionaries({
        "n": COUNT, "n_input_shapes": _maybe(COUNT), "bias_before_batch_norm_n": _maybe(COUNT),
        "bias_s": _maybe(SECONDS)})),
    attention=_maybe(st.fixed_dictionaries(
        {"n": COUNT, "host_s": SECONDS, "device_s": SECONDS, "share": SHARE, "rows": _maybe(COUNT)})),
    code_sites=st.lists(SITE, max_size=2),
    critical_path=_maybe(_some(
        causes=st.dictionaries(st.sampled_from([*CAUSES, "compute", "between", "blocked", "queue", "edges"]), SECONDS),
        kinds=st.dictionaries(st.sampled_from(KINDS), SECONDS),
        late=st.lists(st.fixed_dictionaries({
            "site": st.just("f.py:1"), "function": st.just("f"), "n": COUNT, "total_s": SECONDS,
            "between_s": SECONDS}), max_size=2))),
    what_if=st.lists(st.fixed_dictionaries(
        {"cause": st.sampled_from(CAUSES), "step_s": SECONDS, "low_s": SECONDS, "high_s": SECONDS, "claim_s": SECONDS,
         "basis": st.just("")}), max_size=8),
)  # fmt: skip
PROFILED = settings(max_examples=150 * FUZZ, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def _of(description: dict[str, Any], is_cpu: bool) -> dict[str, Any]:
    """Return the trace without the parts that a trace of a CPU run lacks."""
    parts = ("idle", "device", "copies", "kernels", "allocator")
    return {name: value for name, value in description.items() if not (is_cpu and name in parts)}


def _check_bounds(findings: Any, span_s: float) -> None:
    for finding in findings:
        claimed_s = sum(finding.claims.values())
        assert all(seconds >= 0 for seconds in finding.claims.values())
        if finding.gain is None or not finding.claims:
            continue
        assert 1.0 <= finding.gain.low <= finding.gain.high
        recoverable_s = min(claimed_s, MAX_RECOVERABLE_SHARE * span_s)
        assert finding.gain.high <= span_s / (span_s - recoverable_s) * (1 + 1e-6)


@PROFILED
@given(TRACE, st.booleans())
def test_outcomes_are_within_bounds_when_a_trace_is_arbitrary(description, is_cpu):
    trace = build_trace(_of(description, is_cpu), is_cpu=is_cpu)
    said = diagnose_trace(trace)
    assert said.verdict is not None
    _check_bounds(said.findings, trace.span_s)


_STEP = {"name": "s", "duration_s": 0.0, "device_busy_s": None, "busy_fraction": None, "categories": {}}
_WITHOUT_CAUSES = {"whole": None, "what_if": [], "critical_path": {}, "steps": [{**_STEP, "host_needed_s": None}]}


@PROFILED
@example(_WITHOUT_CAUSES, False)
@given(TRACE, st.booleans())
def test_trace_rules_do_not_fail_when_a_session_has_any_window(description, is_cpu):
    session: Session = build_session({"cpu_trace" if is_cpu else "trace": _of(description, is_cpu)})
    session = diagnose(session)
    assert [(o.code, o.reason) for o in session.outcomes if o.status == "failed"] == []
    assert session.steady is not None
    _check_bounds([f for f in session.findings if f.claims], session.steady.span_s)
