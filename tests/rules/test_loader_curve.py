"""Properties of the recommended number of workers, for any measurements."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.records import Block, LoaderProbe, Session, StageTimes
from lightning_perf.rules.loader_curve import (
    WorkerPlan,
    delivered_batch_s,
    plan_workers,
    predicted_steps,
    probed_loader_of,
    step_spread,
)
from lightning_perf.rules.machine_signals import wait_share
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.signals import loaders_of
from lightning_perf.rules.thresholds import WORKERS_SLACK

from .session_builder import build_session

SECONDS = st.floats(1e-4, 1.0)
WORKERS = st.integers(0, 8)


def point(n: int, batch_s: float, step_s: float | None = None, spread: float = 0.03) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "num_workers": n, "prefetch_factor": 2 if n else None, "batch_s": batch_s, "low_s": (1 - spread) * batch_s,
        "high_s": (1 + spread) * batch_s, "first_batch_s": batch_s, "n_batches": 50, "take_s": 1e-4 if n else None,
    }  # fmt: skip
    if step_s is not None:
        fields |= {"step_s": step_s, "step_low_s": (1 - spread) * step_s, "step_high_s": (1 + spread) * step_s}
    return fields


def session_of(points: list[dict[str, Any]], n_now: int = 0, **fields: Any) -> Session:
    probe = {"status": "measured", "usable_cores": 8.0, "batch_size": 32, "num_workers": n_now, "curve": points,
             "getitem": {"n": 99, "mean_s": 0.001, "p50_s": 0.001, "p95_s": 0.001, "max_s": 0.001},
             "getitem_cpu_fraction": 1.0, **fields}  # fmt: skip
    return build_session(
        {"step_ms": 40, "shares": {"data_wait": 0.7, "validation": 0.0}, "loader": {"num_workers": n_now},
         "settings": {"torch": {"n_threads": 1}}, "loader_probe": probe}
    )  # fmt: skip


def plan_of(session: Session) -> WorkerPlan:
    stage = session.steady
    assert stage is not None
    return plan_workers(session, loaders_of(session)[0], stage, wait_share(stage))


@given(st.lists(st.tuples(WORKERS, SECONDS, st.none() | SECONDS), min_size=1, max_size=6), WORKERS)
def test_choice_is_the_fewest_measured_workers_within_the_slack_when_anything_was_probed(measured, n_now):
    points = [
        point(n, batch_s, step_s) for n, batch_s, step_s in sorted({n: (n, b, s) for n, b, s in measured}.values())
    ]
    plan = plan_of(session_of(points, n_now))
    for step in plan.steps:
        assert 0 < step.low_s <= step.high_s * (1 + 1e-9)
    if plan.chosen is not None:
        allowed = [step for step in plan.steps if step.num_workers <= plan.n_cap]
        if any(step.is_measured and step.num_workers for step in allowed):
            allowed = [step for step in allowed if step.is_measured]
        best_s = min(step.step_s for step in allowed)
        assert plan.chosen.step_s <= best_s * (1 + WORKERS_SLACK) * (1 + 1e-9)
        assert all(s.step_s > best_s * (1 + WORKERS_SLACK) for s in allowed if s.num_workers < plan.chosen.num_workers)
    assert plan.chosen is None or plan.n_workers in {0, *(each["num_workers"] for each in points)}
    assert plan.n_workers <= 8
    assert 0 <= plan.saved_low_s <= plan.saved_high_s


def test_saving_is_probed_when_the_step_was_measured_next_to_compute() -> None:
    plan = plan_of(session_of([point(0, 0.028, 0.040), point(2, 0.014, 0.0145)]))
    assert (plan.n_workers, plan.method) == (2, "probed")
    assert plan.saved_low_s <= 0.040 - 0.0145 <= plan.saved_high_s


def test_saving_is_modeled_when_only_the_loader_alone_was_measured() -> None:
    plan = plan_of(session_of([point(0, 0.028), point(2, 0.014)]))
    assert (plan.n_workers, plan.method) == (2, "modeled")


def test_measured_step_is_recommended_when_a_better_one_is_only_modeled() -> None:
    plan = plan_of(session_of([point(0, 0.028), point(1, 0.028, 0.029), point(4, 0.007)]))
    assert (plan.n_workers, plan.method) == (1, "probed")


def test_interval_holds_both_answers_when_the_probe_computed_less_than_the_training() -> None:
    alike = plan_of(session_of([point(0, 0.028, 0.040), point(2, 0.014, 0.020)]))
    less = plan_of(session_of([point(0, 0.028, 0.032), point(2, 0.014, 0.020)]))
    assert less.saved_low_s < alike.saved_low_s
    assert less.saved_high_s >= 0.040 - 0.020


def test_step_is_never_promised_shorter_than_computing_or_fetching() -> None:
    unsure = point(2, 0.014, 0.020) | {"step_low_s": 0.0}
    low_s = plan_of(session_of([point(0, 0.028, 0.040), unsure])).steps[-1].low_s
    assert low_s > 0.012


def test_spread_of_computing_widens_faster_steps_when_waits_hid_it() -> None:
    steady = build_session({}).steady
    assert steady is not None
    blocks = [{"step_s": 0.040 + 0.001 * (i % 2), "phases": {"data_wait": 0.030}} for i in range(10)]
    timeline = tuple(
        Block(first_step=i, n_steps=10, start_s=0.0, max_step_s=0.1, **block) for i, block in enumerate(blocks)
    )
    session = msgspec.structs.replace(build_session({}), steady=msgspec.structs.replace(steady, timeline=timeline))
    assert step_spread(session, 0.040) == pytest.approx(0.0005 / 0.040, rel=0.05)
    assert step_spread(session, 0.010) == pytest.approx(0.0005 / 0.010, rel=0.05)


def test_batch_cost_comes_from_samples_when_there_is_no_curve() -> None:
    session = session_of([])
    assert session.loader_probe is not None
    assert delivered_batch_s(session.loader_probe) == pytest.approx(0.032)
    assert plan_of(session).chosen is None


def test_nothing_is_delivered_when_the_probe_was_refused() -> None:
    assert delivered_batch_s(LoaderProbe(status="refused", reason="it cannot be copied")) is None


@pytest.mark.parametrize("n_now", [0, 2])
def test_cheaper_batches_save_their_share_and_no_more_than_the_waiting(n_now: int) -> None:
    probed = probed_loader_of(session_of([point(0, 0.028, 0.040), point(2, 0.014, 0.040)], n_now))
    n_steps, waited_s = probed.stage.n_steps, probed.stage.n_steps * probed.wait_s
    assert probed.saved_s(0.0) == 0.0
    assert probed.saved_s(1.0) == pytest.approx(waited_s)
    expected_s = 0.5 * probed.wait_s if n_now == 0 else 0.5 * probed.stage.step_s.mean
    assert probed.saved_s(0.5) == pytest.approx(n_steps * expected_s)


def test_steps_are_predicted_when_the_models_own_step_is_known_and_none_was_timed() -> None:
    measured = session_of([point(0, 0.028, 0.040), point(2, 0.014, 0.0145)], compute_s=0.012)
    predicted = predicted_steps(msgspec.structs.replace(measured, steady=None))
    assert isinstance(predicted, StageTimes)
    assert predicted.step_s.mean == pytest.approx(0.040)
    with pytest.raises(Skip):
        probed_loader_of(msgspec.structs.replace(session_of([]), steady=None))


def test_one_worker_is_promised_no_faster_than_the_mean_batch_when_some_batches_are_costly() -> None:
    session = build_session(
        {"step_ms": 40, "shares": {"data_wait": 0.6, "validation": 0.0}, "loader": {"num_workers": 0}}
    )
    steady = session.steady
    assert steady is not None
    assert steady.fetch is not None
    mean_s = 0.6 * steady.span_s / steady.n_steps
    typical = msgspec.structs.replace(steady.fetch.wait_s, p50=mean_s / 4)
    fetch = msgspec.structs.replace(steady.fetch, wait_s=typical)
    steady = msgspec.structs.replace(steady, fetch=fetch)
    plan = plan_workers(session, loaders_of(session)[0], steady, 0.6)
    assert plan.n_workers == 1
    assert steady.step_s.mean - plan.saved_high_s >= mean_s
