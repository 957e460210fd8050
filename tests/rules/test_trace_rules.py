"""The rules on public traces with known causes, and on traces without a session."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.records import Finding, TraceRecord
from lightning_perf.rules.engine import diagnose, diagnose_trace
from lightning_perf.rules.trace_reading import reading_of
from tests.traces.shared import index_rows, needs_shared_traces, record

from .case_files import load
from .session_builder import build_session, build_trace


@functools.lru_cache(maxsize=40)
def _diagnosed(name: str) -> TraceRecord:
    return diagnose_trace(record(f"{name}.json.gz"))


def _found(name: str) -> dict[str, Finding]:
    return {finding.code: finding for finding in _diagnosed(name).findings}


KNOWN: dict[str, dict[str, Any]] = load(Path(__file__).with_name("known_traces.yml"))


@needs_shared_traces
@pytest.mark.parametrize("name", KNOWN)
def test_diagnosis_of_a_real_trace_has_the_known_causes_and_no_wrong_one(name: str) -> None:
    known, verdict, found = KNOWN[name], _diagnosed(name).verdict, set(_found(name))
    assert verdict is not None
    assert verdict.code == known.get("verdict", verdict.code), verdict.text
    assert set(known.get("also", ())) <= found
    assert not set(known.get("not", ())) & found


@needs_shared_traces
def test_gain_includes_the_measured_speedup_when_read_from_the_trace_without_workers():
    before, after = _diagnosed("resnet50-workers0"), _diagnosed("resnet50-workers4")
    gain = _found("resnet50-workers0")["PD101"].gain
    measured = (before.span_s / len(before.steps)) / (after.span_s / len(after.steps))
    assert gain is not None
    assert gain.low <= measured <= gain.high


@needs_shared_traces
@pytest.mark.parametrize("name", KNOWN)
def test_gain_is_limited_to_the_time_of_the_trace_when_a_real_trace_is_diagnosed(name):
    diagnosis = _diagnosed(name)
    for finding in diagnosis.findings:
        if finding.gain is None:
            continue
        claimed_s = sum(finding.claims.values())
        assert 0 <= claimed_s <= diagnosis.span_s * (1 + 1e-9)
        assert 1.0 <= finding.gain.low <= finding.gain.high
        assert finding.gain.high <= diagnosis.span_s / max(diagnosis.span_s - claimed_s, diagnosis.span_s / 50) * (
            1 + 1e-9
        )


CAUSES = {
    "PD101": ("loader",),
    "PD201": ("pageable_copy",),
    "PD202": ("transfer",),
    "PD204": ("device_to_host",),
    "PD303": ("launch", "between"),
    "PD304": ("launch", "between"),
    "PD410": ("allocator",),
    "PD501": ("sync", "sync_communication"),
    "PD702": ("communication",),
    "PD708": ("communication",),
    **dict.fromkeys(("PD301", "PD302", "PD305", "PD306", "PD309", "PD310"), ("compute",)),
}


@needs_shared_traces
@pytest.mark.parametrize("name", [row.file.removesuffix(".json.gz") for row in index_rows()])
def test_no_second_is_claimed_twice_when_a_real_trace_is_diagnosed(name):
    diagnosis = _diagnosed(name)
    path = diagnosis.critical_path
    if path is None:
        assert not any(finding.claims for finding in diagnosis.findings)
        return
    assert sum(path.causes.values()) == pytest.approx(diagnosis.span_s, rel=1e-6)
    assert sum(path.kinds.values()) <= path.causes.get("compute", 0.0) * (1 + 1e-6)
    claimed: dict[tuple[str, ...], float] = {}
    for finding in diagnosis.findings:
        if finding.claims:
            causes = CAUSES[finding.code]
            claimed[causes] = claimed.get(causes, 0.0) + sum(finding.claims.values())
    for causes, seconds in claimed.items():
        assert seconds <= sum(path.causes.get(cause, 0.0) for cause in causes) * (1 + 1e-6), causes
    assert sum(claimed.values()) <= diagnosis.span_s * (1 + 1e-6)


@needs_shared_traces
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("resnet50-workers4", "<module> (resnet50_profiler_api.py:44)"),
        ("sam-fp32-syncs-a100", "aten::copy_"),
        ("sglang-decode", "resolve_future_token_ids.py:30"),
        ("sampled-rank-0-of-128", "although work was launched"),
        ("alexnet-critical-path-a100", "host time in operators while the device waits"),
        ("param-resnet-2080ti", "before the first and after the last device event"),
    ],
)
def test_unexplained_time_names_its_place_when_no_cause_of_a_real_trace_covers_it(name, place):
    finding = _found(name)["PD904"]
    assert place in finding.summary


@needs_shared_traces
def test_code_is_named_when_a_real_trace_has_stacks():
    found = _found("owlv2-h100")
    assert "modeling_owlv2.py:410" in found["PD309"].summary
    assert "modeling_bert.py" in _found("bert-small-h100")["PD303"].summary


@needs_shared_traces
def test_gain_follows_from_idle_time_when_a_trace_has_thousands_of_waits():
    """The trace has 7,024 synchronizations and 11,286 waits, but the device lost only one second."""
    finding = _found("sam-fp32-syncs-a100")["PD501"]
    assert finding.evidence[0].value == pytest.approx(1.0047 / 2.5651, rel=0.02)


def test_device_is_not_reported_when_a_trace_shows_a_gpu_without_kernels():
    diagnosis = diagnose_trace(build_trace({"device_name": "A100", "missing": {"device": "no kernel"}}, is_cpu=True))
    assert [finding.code for finding in diagnosis.findings] == ["PD907"]
    assert diagnosis.verdict is not None
    assert (diagnosis.verdict.category, diagnosis.verdict.code) == ("unknown", None)
    assert "no kernel" in diagnosis.verdict.text


@pytest.mark.parametrize("is_cpu", [True, False])
def test_trace_is_healthy_when_nothing_is_wrong_with_it(is_cpu):
    diagnosis = diagnose_trace(build_trace({}, is_cpu=is_cpu))
    assert [finding.code for finding in diagnosis.findings] == ([] if is_cpu else ["PD904"])
    assert diagnosis.verdict is not None
    assert diagnosis.verdict.category == "healthy"


def test_verdict_is_unknown_when_a_device_is_idle_for_no_known_reason():
    diagnosis = diagnose_trace(build_trace({"device": {"busy_s": 0.1}}))
    assert diagnosis.verdict is not None
    assert diagnosis.verdict.category == "unknown"
    assert "idle for 67 %" in diagnosis.verdict.text


def test_verdict_names_the_call_when_most_of_a_trace_is_start_up():
    startup = {"total_s": 4.0, "span_s": 4.0, "calls": [{"name": "cudaFree", "n": 1, "total_s": 4.0}]}
    path = {"causes": {"startup": 4.0, "compute": 1.0}}
    diagnosis = diagnose_trace(build_trace({"steps": [], "span_s": 5.0, "startup": startup, "critical_path": path}))
    assert diagnosis.verdict is not None
    assert diagnosis.verdict.category == "unknown"
    assert "80 % of the trace's time is start-up, mostly cudaFree" in diagnosis.verdict.text


def test_verdict_is_unknown_when_most_of_a_trace_is_before_and_after_device_events():
    diagnosis = diagnose_trace(build_trace({"steps": [], "span_s": 5.0, "device": {"span_s": 0.4, "busy_s": 0.4}}))
    assert diagnosis.verdict is not None
    assert diagnosis.verdict.category == "unknown"
    assert "before the first or after the last device event" in diagnosis.verdict.text


def test_verdict_is_unknown_when_a_trace_is_empty():
    diagnosis = diagnose_trace(build_trace({"n_operators": 0, "operators": [], "operator_mean_s": None}, is_cpu=True))
    assert diagnosis.verdict is not None
    assert diagnosis.verdict.category == "unknown"


def test_no_rule_fails_when_a_trace_has_no_length():
    empty = TraceRecord(
        source="x", rank=None, world_size=None, device_name=None, n_events=0, n_kernels=0, steps=(), idle=None,
        communication=None, copies=None, syncs=None, kernels=None, operators=(),
    )  # fmt: skip
    assert diagnose_trace(empty).verdict is not None
    session = build_session({"trace": {}})
    window = msgspec.structs.replace(session.windows[0], trace=empty)
    outcomes = diagnose(msgspec.structs.replace(session, windows=(window,))).outcomes
    assert [(o.code, o.reason) for o in outcomes if o.status == "failed"] == []


def test_selection_applies_when_a_trace_is_diagnosed():
    late = {"kernels": {"median_s": 5e-6}, "idle": {"host_wait_by_phase_s": {"forward": 0.15}}}
    assert {f.code for f in diagnose_trace(build_trace(late)).findings} == {"PD303"}
    assert diagnose_trace(build_trace(late), ignore=["PD3"]).findings == ()


@pytest.mark.parametrize(("is_cpu", "low"), [(False, 1 / (1 - 0.9 * 0.5 * 0.4)), (True, 1.0)])
def test_slow_rank_has_a_certain_gain_when_traces_show_that_devices_compute(is_cpu: bool, low: float) -> None:
    parts_s = [{"data": 0.0, "compute": 0.06}, {"data": 0.04, "compute": 0.06}]
    ranks = [
        {"rank": rank, "source": f"{rank}", "step_s": 0.1, "own_s": sum(parts.values()),
         "waiting_s": 0.1 - sum(parts.values()), "transfer_s": 0.0, "parts_s": parts}
        for rank, parts in enumerate(parts_s)
    ]  # fmt: skip
    trace = build_trace({"ranks": {"world_size": 2, "n_steps": 3, "n_matched": 30, "ranks": ranks}}, is_cpu=is_cpu)
    (finding,) = (one for one in diagnose_trace(trace).findings if one.code == "PD701")
    assert finding.gain is not None
    assert finding.gain.low == pytest.approx(low)


def test_shares_apply_to_timed_steps_when_a_session_has_both():
    late = {"kernels": {"median_s": 5e-6}, "idle": {"host_wait_by_phase_s": {"forward": 0.15}}}
    session = diagnose(build_session({"trace": late, "shares": {"validation": 0.5}}))
    (finding,) = (f for f in session.findings if f.code == "PD303")
    assert finding.gain is not None
    assert "applied to 1000 timed steps" in finding.gain.basis
    # At most the 0.06 s of 0.3 s in which the device was idle, in the 48 % of the span that are steps.
    assert finding.gain.high == pytest.approx(1 / (1 - 0.2 * 0.48), rel=1e-6)


def test_kernels_hidden_by_the_profiler_are_on_the_path_at_the_speed_of_timed_steps():
    """Of 300 ms, 60 are idle under the profiler; timed steps of 90 ms leave 30. A quarter of the work is copies."""
    causes = {"compute": 0.0, "hidden": 0.24, "launch": 0.06}
    trace = {"critical_path": {"causes": causes, "long_gaps_s": 0.02}, "device": {"compute_s": 0.18, "busy_s": 0.24}}
    reading = reading_of(build_session({"step_ms": 90.0, "trace": trace}))
    assert reading.path_s("launch") == pytest.approx(0.03)
    assert reading.path_s("compute") == pytest.approx(0.75 * 0.5 * 0.24)
    assert reading.path_s("hidden") == pytest.approx(0.24 - 0.75 * 0.5 * 0.24)
    assert reading.trace.critical_path.long_gaps_s == pytest.approx(0.01)
    assert reading.trace.span_s == pytest.approx(0.27)
    as_slow = reading_of(build_session({"step_ms": 100.0, "trace": trace}))
    assert as_slow.trace.critical_path.causes == causes
