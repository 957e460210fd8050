"""How fast the machine is, from a small benchmark that runs during training."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.probes.telemetry import machine_speed
from lightning_perf.probes.telemetry.machine_speed import EVERY_STEPS, MAX_TIMES, MIN_TIMES, MachineSpeedProbe
from tests.fakes import FakeClock
from tests.rules.session_builder import build_session


def trained(
    monkeypatch: pytest.MonkeyPatch, n_steps: int, benchmark_ns: int = 20_000
) -> tuple[MachineSpeedProbe, list[int]]:
    """Train for some steps; return the probe and the steps after which the benchmark ran."""
    clock, timed = FakeClock(), []
    main = SimpleNamespace(n_steps=0)

    def run_benchmark() -> None:
        timed.append(main.n_steps)
        clock.now += benchmark_ns

    monkeypatch.setattr(machine_speed, "_run_benchmark", run_benchmark)
    run: Any = SimpleNamespace(loop=SimpleNamespace(main=main), now_ns=clock, has_history=True)
    probe = MachineSpeedProbe.open(run)
    for _ in range(n_steps):
        clock.advance(1e-3)
        if probe.next_step <= main.n_steps:
            probe.step_ends()
        main.n_steps += 1
    return probe, timed


def fixed_s(probe: MachineSpeedProbe) -> Any:
    part = probe.part(build_session())
    return part["steady"].fixed_python_s if part else None


def test_long_run_keeps_times_from_all_of_it_and_measures_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, timed = trained(monkeypatch, 40 * MAX_TIMES * EVERY_STEPS)
    assert {later - step for step, later in itertools.pairwise(timed[: MAX_TIMES - 1])} == {EVERY_STEPS}
    assert MAX_TIMES / 2 <= len(probe._times_ns) < MAX_TIMES
    assert len(timed) < 5 * MAX_TIMES
    assert timed[-1] > 39 * MAX_TIMES * EVERY_STEPS
    assert probe.step_cost_ns == 20_000 * len(timed)


def test_times_are_the_mean_of_the_middle_half(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, _ = trained(monkeypatch, 100 * EVERY_STEPS, benchmark_ns=25_000)
    probe._times_ns[:20] = [9_000_000] * 20  # other programs ran meanwhile
    assert fixed_s(probe) == pytest.approx(25e-6)


def test_few_times_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, timed = trained(monkeypatch, MIN_TIMES * EVERY_STEPS)
    assert (len(timed), fixed_s(probe)) == (MIN_TIMES - 1, None)
    enough, _ = trained(monkeypatch, MIN_TIMES * EVERY_STEPS + 1)
    assert fixed_s(enough) == pytest.approx(20e-6)
    assert enough.part(build_session({"steady": None})) == {}


def test_nothing_is_timed_without_a_history() -> None:
    run: Any = SimpleNamespace(has_history=False)
    assert MachineSpeedProbe.open(run) is None
