"""Changes of telemetry at the point in time from which steps take longer."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.rules.engine import diagnose

from .session_builder import build_session


def course(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    # Blocks of the builder's timeline begin every half second: the 20th begins at 10 s.
    points = [
        {"start_s": 0.5 * i, "step": 25 * i + 1, "n_samples": 1, "values": before if i < 20 else after}
        for i in range(40)
    ]
    return {"timeline_ms": [20.0] * 20 + [30.0] * 20, "telemetry": {"hz": 1.0, "timeline": points}}


def changes(description: dict[str, Any]) -> list[tuple[str, float]]:
    finding = next(f for f in diagnose(build_session(description)).findings if f.code == "PD605")
    return [(e.metric, e.value) for e in finding.evidence if " then: " in e.metric]


def test_finding_lists_changed_telemetry_when_step_time_changed() -> None:
    before = {"cuda:0 sm_clock_mhz": 1980.0, "cuda:0 temperature_c": 70.0, "iowait_fraction": 0.01}
    after = {"cuda:0 sm_clock_mhz": 1300.0, "cuda:0 temperature_c": 88.0, "iowait_fraction": 0.02}
    assert changes(course(before, after)) == [
        ("cuda:0 sm clock then: was 1980, became", 1300.0),
        ("cuda:0 temperature then: was 70, became", 88.0),
    ]


def test_finding_lists_no_telemetry_when_the_machine_did_not_change() -> None:
    steady = {"cuda:0 sm_clock_mhz": 1980.0, "iowait_fraction": 0.0, "rss_bytes": 1e9}
    assert changes(course(steady, {**steady, "rss_bytes": 1.05e9})) == []
    assert changes({"timeline_ms": [20.0] * 20 + [30.0] * 20}) == []


def test_evidence_has_its_unit_when_a_metric_changed() -> None:
    before = {"process_cpu_cores": 1.2, "cpu_busy_fraction": 0.3, "available_bytes": 8e9}
    description = course(before, {"process_cpu_cores": 1.2, "cpu_busy_fraction": 0.9, "available_bytes": 4e9})
    finding = next(f for f in diagnose(build_session(description)).findings if f.code == "PD605")
    units = {each.metric.partition(" then: ")[0]: each.unit for each in finding.evidence}
    assert units["available"] == "bytes"
    assert units["cpu busy"] == "fraction"


@pytest.mark.parametrize(
    ("own", "busy", "accelerator", "severity"),
    [
        (0.78, 0.63, "cpu", "info"),  # other programs use the cores that it lost
        (0.78, 0.42, "cpu", "low"),  # it sleeps in forward: no other program uses these cores
        (1.1, 0.63, "cpu", "low"),  # it uses as many cores as before
        (0.78, 0.63, "cuda", "low"),  # the device computes
    ],
)
def test_slower_compute_is_attributed_to_the_machine_when_other_programs_took_cores(
    own: float, busy: float, accelerator: str, severity: str
) -> None:
    before = {"process_cpu_cores": 1.2, "cpu_busy_fraction": 0.62}
    description = course(before, {"process_cpu_cores": own, "cpu_busy_fraction": busy})
    description["machine"] = {"usable_cores": 2.0}
    description["settings"] = {"trainer": {"accelerator": accelerator}}
    finding = next(f for f in diagnose(build_session(description)).findings if f.code == "PD605")
    assert finding.severity == severity
    assert ("fewer cores" in finding.summary) == (severity == "info")
    assert (finding.gain is None) == (severity == "info")
