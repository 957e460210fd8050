"""The model of a loader: what it must do whatever the figures are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.records import LoaderProbe
from lightning_perf.rules.loader_model import (
    SLACK,
    WAITING_REACH,
    Delivery,
    Demand,
    batch_costs,
    choose,
    fit_delivery,
    forecast,
    forecasts,
    worker_cap,
)

SECONDS = st.floats(1e-5, 10.0)
FRACTION = st.floats(0.0, 1.0)
COSTS = st.sampled_from([(), (0.5, 0.5, 0.5, 2.5) * 40])
DELIVERY = st.builds(
    Delivery, batch_s=SECONDS, worker_batch_s=SECONDS, take_s=st.floats(1e-5, 1e-2), cpu_fraction=FRACTION,
    error=st.floats(0.0, 0.5), costs=COSTS,
)  # fmt: skip
EVEN = st.builds(Delivery, batch_s=SECONDS, worker_batch_s=SECONDS, cpu_fraction=FRACTION)
DEMAND = st.builds(
    Demand, compute_s=st.floats(0.0, 10.0), cores=st.floats(1.0, 128.0), threads=st.floats(0.1, 64.0),
    others=st.floats(0.0, 8.0), others_most=st.floats(0.0, 8.0), computes_on_cores=st.booleans(),
    error=st.floats(0.0, 0.5),
)  # fmt: skip
WORKERS = st.integers(0, 64)
TINY = 1 + 1e-9


def changed(record: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(record, **fields)


@given(DELIVERY, DEMAND, WORKERS, st.sampled_from([1, 2, 4, 8]))
def test_interval_holds_the_forecast_when_anything_is_measured(delivery, demand, n, factor):
    said = forecast(delivery, demand, n, factor)
    assert 0 < said.low_s <= said.step_s * TINY
    assert said.step_s <= said.high_s * TINY
    assert said.fetch_s > 0


@given(DELIVERY, DEMAND, WORKERS)
def test_step_is_never_shorter_than_its_computing(delivery, demand, n):
    assert forecast(delivery, demand, n).step_s * TINY >= demand.compute_s


@given(DELIVERY, DEMAND, st.integers(1, 64))
def test_step_is_never_shorter_than_making_a_batch_by_all_workers(delivery, demand, n):
    assert forecast(delivery, demand, n).step_s * TINY >= delivery.worker_batch_s / n


@given(EVEN, DEMAND, WORKERS, st.floats(1.0, 10.0))
def test_step_grows_with_the_cost_of_computing_and_of_batches(delivery, demand, n, factor):
    before_s = forecast(delivery, demand, n).step_s
    slower = changed(demand, compute_s=demand.compute_s * factor)
    assert forecast(delivery, slower, n).step_s * TINY >= before_s
    costlier = changed(delivery, batch_s=delivery.batch_s * factor, worker_batch_s=delivery.worker_batch_s * factor)
    assert forecast(costlier, demand, n).step_s * TINY >= before_s


@given(EVEN, DEMAND, WORKERS, st.floats(1.0, 64.0))
def test_step_does_not_grow_with_more_cores(delivery, demand, n, more):
    # What the computing takes was measured on the cores there are: enough of them, or more would change it too.
    enough = changed(demand, cores=max(demand.cores, demand.threads), others=0.0)
    wider = changed(enough, cores=enough.cores + more)
    assert forecast(delivery, wider, n).step_s <= forecast(delivery, enough, n).step_s * TINY


@given(EVEN, DEMAND, st.integers(1, 63))
def test_step_does_not_grow_with_workers_that_only_wait(delivery, demand, n):
    waiting = changed(delivery, cpu_fraction=0.0)
    roomy = changed(demand, cores=max(demand.cores, demand.threads))
    assert forecast(waiting, roomy, n + 1).step_s <= forecast(waiting, roomy, n).step_s * TINY


@given(DELIVERY, DEMAND, st.integers(0, 32))
@settings(max_examples=50, deadline=None)
def test_choice_is_the_fewest_workers_within_the_slack_when_there_are_many(delivery, demand, n_cap):
    options = forecasts(delivery, demand, n_cap)
    chosen = choose(options)
    best_s = min(each.step_s for each in options)
    assert chosen.step_s <= best_s * (1 + SLACK) * TINY
    assert all(each.step_s > best_s * (1 + SLACK) for each in options if each.num_workers < chosen.num_workers)


@given(st.floats(1.0, 256.0), FRACTION, st.none() | st.integers(0, 99), st.none() | st.floats(0, 500))
def test_cap_is_kept_when_samples_compute_and_goes_beyond_the_cores_only_when_they_wait(cores, cpu, batches, shm):
    cap = worker_cap(cores, cpu, batches, shm)
    assert 0 <= cap <= (cores if cpu >= 0.5 else WAITING_REACH * cores)
    assert batches is None or cap <= batches
    assert shm is None or 2 * 2 * cap <= shm


def test_cap_leaves_one_core_to_the_training_when_samples_compute():
    assert worker_cap(1.5, 1.0) == 0
    assert worker_cap(1.0, 0.05) == 4


def test_one_thread_and_one_worker_do_not_disturb_each_other_when_there_are_two_cores():
    demand = Demand(compute_s=0.02, cores=2, threads=1)
    delivery = Delivery(batch_s=0.01, worker_batch_s=0.01, take_s=0.0)
    assert forecast(delivery, demand, 0).step_s == pytest.approx(0.03)
    assert forecast(delivery, demand, 1).step_s == pytest.approx(0.02)


def test_one_thread_and_two_workers_share_two_cores_evenly():
    # A batch of 10 ms is made in 15 ms, by two workers in turn: for 7.5 ms of each step the thread has 2/3 of a core.
    demand = Demand(compute_s=0.02, cores=2, threads=1)
    delivery = Delivery(batch_s=0.01, worker_batch_s=0.01, take_s=0.0)
    assert forecast(delivery, demand, 2).step_s == pytest.approx(0.0225)


def test_two_threads_lose_more_than_a_worker_takes_when_it_comes_to_one_of_their_cores():
    # Measured on two cores: 43 ms without workers, 50 to 58 ms with one, 41 ms with two (benchmarks/loader).
    demand = Demand(compute_s=0.025, cores=2, threads=2)
    delivery = Delivery(batch_s=0.0184, worker_batch_s=0.0195, take_s=0.0)
    without, one, two = (forecast(delivery, demand, n).step_s for n in (0, 1, 2))
    assert without == pytest.approx(0.0434)
    assert one == pytest.approx(0.054, rel=0.1)
    assert two == pytest.approx(0.041, rel=0.1)


def test_others_take_their_part_when_a_worker_comes_on_top_of_them():
    demand = Demand(compute_s=0.02, cores=2, threads=1, others=1)
    delivery = Delivery(batch_s=0.01, worker_batch_s=0.01, take_s=0.0)
    alone = changed(demand, others=0.0)
    assert forecast(delivery, demand, 0) == forecast(delivery, alone, 0)  # it is in what was measured
    assert forecast(delivery, demand, 1).step_s == pytest.approx(0.025)
    assert forecast(delivery, demand, 1).low_s == pytest.approx(forecast(delivery, alone, 1).low_s)
    assert forecast(delivery, changed(alone, others_most=1), 1).high_s > forecast(delivery, alone, 1).high_s


def test_workers_beyond_the_cores_deliver_no_more_when_they_compute():
    demand = Demand(compute_s=1e-6, cores=2, threads=0.1)
    delivery = Delivery(batch_s=0.04, worker_batch_s=0.04, take_s=0.0)
    assert forecast(delivery, demand, 8).step_s == pytest.approx(0.02, rel=0.01)


def test_uneven_batches_take_longer_and_batches_ahead_even_them_out():
    demand = Demand(compute_s=0.010, cores=64, threads=1)
    even = Delivery(batch_s=0.018, worker_batch_s=0.018, take_s=0.0)
    uneven = changed(even, costs=(0.4,) * 3 + (2.8,) + (0.4,) * 5 + (1.5, 2.1, 1.6))
    uneven = changed(uneven, costs=tuple(c / 1.0 for c in uneven.costs) * 20)
    at_2, at_8 = (forecast(uneven, demand, 2, factor).step_s for factor in (2, 8))
    assert at_2 > 1.05 * forecast(even, demand, 2).step_s
    assert at_8 < at_2


def probed(curve: dict[int, float], **fields: Any) -> LoaderProbe:
    points = [
        {"num_workers": n, "prefetch_factor": 2 if n else None, "batch_s": s, "low_s": 0.97 * s, "high_s": 1.03 * s,
         "first_batch_s": s, "n_batches": 50, "take_s": 1e-4 if n else None} for n, s in curve.items()
    ]  # fmt: skip
    return msgspec.convert({"status": "measured", "usable_cores": 8.0, "curve": points, **fields}, LoaderProbe)


@given(st.floats(1e-3, 1.0), st.floats(0.05, 1.0), st.integers(1, 5))
def test_fit_finds_the_cost_in_a_worker_when_the_curve_follows_the_model(batch_s, cpu_fraction, doublings):
    truth = Delivery(batch_s=batch_s, worker_batch_s=1.1 * batch_s, take_s=1e-5, cpu_fraction=cpu_fraction)
    demand = Demand(compute_s=0.0, cores=8.0)
    curve = {n: forecast(truth, demand, n).fetch_s for n in (0, *(2**i for i in range(doublings)))}
    fitted = fit_delivery(probed(curve, getitem_cpu_fraction=cpu_fraction))
    assert fitted is not None
    assert fitted.worker_batch_s == pytest.approx(truth.worker_batch_s, rel=0.02)
    assert fitted.batch_s == pytest.approx(batch_s)


@pytest.mark.parametrize(
    ("at_2", "at_4", "others"),
    [(0.010, 0.005, 0.0), (0.010, 0.0075, 2.0), (None, None, None)],
    ids=["alone", "two others compute", "all cores were not wanted"],
)
def test_fit_finds_what_others_took_when_workers_wanted_all_cores(at_2, at_4, others):
    points = {0: 0.020, 1: 0.020, 2: at_2, 4: at_4}
    curve = {n: batch_s for n, batch_s in points.items() if batch_s is not None}
    fitted = fit_delivery(probed(curve, getitem_cpu_fraction=1.0, usable_cores=4.0))
    assert fitted is not None
    assert fitted.others == (None if others is None else pytest.approx(others, abs=0.5))


def test_fit_goes_by_the_sure_points_when_one_was_measured_badly():
    record = probed({0: 0.02, 1: 0.02, 2: 0.01, 4: 0.008}, getitem_cpu_fraction=0.0)
    unsure = changed(record.curve[-1], low_s=0.0, high_s=0.016)
    fitted = fit_delivery(changed(record, curve=[*record.curve[:-1], unsure]))
    assert fitted is not None
    assert fitted.worker_batch_s == pytest.approx(0.02, rel=0.01)


def test_fit_uses_the_samples_when_there_is_no_curve():
    sample = {"n": 99, "mean_s": 0.001, "p50_s": 0.001, "p95_s": 0.001, "max_s": 0.001}
    fitted = fit_delivery(probed({}, getitem=sample, batch_size=32, transport={**sample, "p50_s": 0.004}))
    assert fitted is not None
    assert fitted.batch_s == pytest.approx(0.032)
    assert fitted.worker_batch_s == pytest.approx(0.036)


def test_fit_gives_nothing_when_the_probe_was_refused():
    assert fit_delivery(LoaderProbe(status="refused", reason="it cannot be copied")) is None


def test_batches_are_uneven_when_one_sample_in_32_takes_thirty_times_as_long():
    usual = {"n": 999, "mean_s": 0.0010, "p50_s": 0.001, "p95_s": 0.0011, "max_s": 0.0012}
    bursty = {**usual, "mean_s": 0.001 * (31 + 30) / 32, "max_s": 0.030}
    assert batch_costs(probed({}, getitem=usual, batch_size=32)) == ()
    costs = batch_costs(probed({}, getitem=bursty, batch_size=32))
    assert sum(costs) / len(costs) == pytest.approx(1.0)
    assert max(costs) > 1.5


def test_batches_are_as_uneven_as_their_slow_samples_make_them_when_one_was_delayed():
    bursty = {"n": 960, "mean_s": 0.001 * (31 + 30) / 32, "p50_s": 0.001, "p95_s": 0.0011, "max_s": 0.030}
    delayed = {**bursty, "max_s": 0.300}
    as_planted = batch_costs(probed({}, getitem=bursty, n_slow=30, batch_size=32))
    assert batch_costs(probed({}, getitem=delayed, n_slow=30, batch_size=32)) == pytest.approx(as_planted)


def test_batches_are_even_when_samples_scatter_a_little():
    # Exponentially distributed samples: the longest of a thousand takes some seven times the mean.
    scattered = {"n": 999, "mean_s": 0.001, "p50_s": 0.0009, "p95_s": 0.002, "max_s": 0.004}
    assert batch_costs(probed({}, getitem=scattered, batch_size=64)) == ()
