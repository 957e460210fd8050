"""The certain part of a gain: no more than the device and the loader let the steps get faster."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.records import Finding
from lightning_perf.rules.engine import diagnose

from .session_builder import build_session

CALLBACK = {"name": "Sharpness", "kind": "callback", "hook": "on_train_batch_end", "phase": "callbacks",
            "total_s": 6.0, "share": 0.27, "n_calls": 1000}  # fmt: skip
ON_DEVICE = {"trainer": {"accelerator": "cuda"}}


def slow_callback(steady: dict[str, Any] | None = None, **more: Any) -> Finding:
    """The finding of a callback that takes 27 % of 1,000 steps of 20 ms."""
    document = {"shares": {"callbacks": 0.3}, **more, "steady": {"named": [CALLBACK], **(steady or {})}}
    return next(one for one in diagnose(build_session(document)).findings if one.code == "PD504")


def saved(finding: Finding) -> float:
    assert finding.gain is not None
    return 1 - 1 / finding.gain.low


def test_whole_certain_part_is_kept_on_a_cpu_without_workers() -> None:
    finding = slow_callback(loader={"num_workers": 0})
    assert saved(finding) == pytest.approx(0.9 * 0.9 * 0.27)
    assert finding.severity == "high"


def test_nothing_is_certain_on_a_device_of_which_nothing_is_known() -> None:
    finding = slow_callback(settings=ON_DEVICE)
    assert saved(finding) == 0.0
    assert finding.severity == "low"
    assert "measure it" in finding.summary


@pytest.mark.parametrize(("busy_ms", "idle_part"), [(19.0, 0.05), (16.0, 0.2), (20.0, 0.0)])
def test_device_must_be_idle_between_steps_for_host_time_to_be_certain(busy_ms: float, idle_part: float) -> None:
    times = {"p50": 0.02, "p95": 0.02, "p99": 0.02, "mean": 0.02, "std": 0.0}
    device = {"n": 100, "starved_s": 0.0, "starved_share": 0.0, "busy_s": 0.1 * busy_ms, "step_s": times,
              "backend": "cuda"}  # fmt: skip
    finding = slow_callback({"device": device}, settings=ON_DEVICE)
    in_steps = 1000 * 0.02 / build_session({"shares": {"callbacks": 0.3}}).steady.span_s  # type: ignore[union-attr]
    assert saved(finding) == pytest.approx(min(0.9 * 0.9 * 0.27, idle_part * in_steps), abs=1e-3)
    assert "idle" not in finding.summary  # no window shows it


def test_window_shows_how_long_the_device_is_idle_without_its_clock() -> None:
    finding = slow_callback(settings=ON_DEVICE, trace={}, step_ms=100.0)
    assert 0.1 < saved(finding) < 0.2  # the trace is busy for 80 of 100 ms
    assert "idle" not in finding.summary


def test_finding_says_that_host_time_may_be_a_wait_when_a_window_shows_a_busy_device() -> None:
    causes = {"compute": 0.24, "launch": 0.06}
    finding = slow_callback(settings=ON_DEVICE, trace={"critical_path": {"causes": causes}}, step_ms=82.0)
    assert saved(finding) < 0.03  # without the profiler, a step takes 82 ms, for 80 of which the device is busy
    assert "idle for only 2.2 % of the time" in finding.summary


def test_steps_get_no_shorter_than_workers_need_for_a_batch() -> None:
    fetch = {"in_process_batch_s": 0.038}  # 19 ms with two workers
    assert saved(slow_callback({"fetch": fetch})) == pytest.approx(0.045, abs=0.006)
    assert saved(slow_callback({"fetch": fetch}, loader={"num_workers": 0})) == pytest.approx(0.9 * 0.9 * 0.27)


def test_time_between_steps_is_certain_whatever_workers_need() -> None:
    epoch_end = {**CALLBACK, "hook": "on_train_epoch_end", "phase": "epoch_boundary", "n_calls": 20}
    steady = {"named": [epoch_end], "fetch": {"in_process_batch_s": 0.04}}
    finding = slow_callback(steady, shares={"epoch_boundary": 0.3})
    assert saved(finding) == pytest.approx(0.9 * 0.9 * 0.27)
