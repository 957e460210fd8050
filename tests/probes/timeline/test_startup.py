"""The parts of the time to the first step."""

from __future__ import annotations

import pytest

from lightning_perf.probes.timeline.steps import startup_parts
from lightning_perf.records import PHASES, Distribution, PhaseTime, StageTimes
from lightning_perf.rules.loop import pd604_slow_start

STEADY = StageTimes(
    n_steps=10,
    n_warmup_steps=1,
    span_s=4.5,
    samples_per_s=None,
    step_s=Distribution(p50=0.45, p95=0.45, p99=0.45, mean=0.45, std=0.0),
    phases={"data_wait": PhaseTime(total_s=1.0, share=0.2, p50_s=0.1, p95_s=0.1)},
)


def first_step(**seconds: float) -> tuple[int, ...]:
    return tuple(round(seconds.get(name, 0.0) * 1e9) for name in PHASES)


def test_startup_holds_what_the_first_fetch_and_step_took_beyond_usual_ones() -> None:
    startup_ns = {"startup": 5_000_000_000, "callbacks": 2_000_000_000}
    parts = startup_parts(startup_ns, 3_000_000_000, first_step(data_wait=2.1, forward=9.0, validation=70.0), STEADY)
    assert parts == pytest.approx(
        {"other": 2.0, "callbacks": 2.0, "sanity_validation": 3.0, "loader_start": 2.0, "first_step": 9.0 - 0.35}
    )


def test_first_step_counts_whole_when_nothing_usual_is_known() -> None:
    parts = startup_parts({}, 0, first_step(data_wait=2.1, forward=9.0), None)
    assert parts == pytest.approx({"loader_start": 2.1, "first_step": 9.0})


@pytest.mark.parametrize("step", [None, first_step(data_wait=0.05, forward=0.2)])
def test_startup_has_no_first_step_when_it_is_unknown_or_faster_than_usual(step: tuple[int, ...] | None) -> None:
    assert startup_parts({"startup": 1_000_000_000}, 0, step, STEADY) == {"other": 1.0}


def test_slow_start_advises_on_nothing_but_parts_that_are_recorded() -> None:
    startup_ns = dict.fromkeys(PHASES, 2_000_000_000)
    parts = startup_parts(startup_ns, 1_000_000_000, first_step(data_wait=2.1, forward=9.0), STEADY)
    assert set(pd604_slow_start._ADVICE) <= set(parts)
