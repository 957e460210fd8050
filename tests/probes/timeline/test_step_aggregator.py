from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from lightning_perf.probes.timeline.spans import OWN, PHASE_INDEX
from lightning_perf.probes.timeline.step_aggregator import (
    FIRST_STEP,
    KIND,
    LEFT_OUT_STEP,
    LEFT_OUT_TIME,
    NOT_A_STEP,
    RECORD_WIDTH,
    SAMPLES,
    USUAL_STEP,
    StepAggregator,
    time_with_boundaries_s,
    usual_steps_s,
)
from lightning_perf.records import StageTimes

MS = 1_000_000


def rows(n: int = 1, kind: int = USUAL_STEP, samples: int = 4, **phases_ms: float) -> NDArray[np.int64]:
    """``n`` equal rows."""
    made = np.zeros((n, RECORD_WIDTH), dtype=np.int64)
    for name, milliseconds in phases_ms.items():
        made[:, PHASE_INDEX[name]] = round(milliseconds * MS)
    made[:, KIND] = kind
    made[:, SAMPLES] = samples
    return made


def aggregated(*parts: NDArray[np.int64]) -> StepAggregator:
    aggregator = StepAggregator()
    aggregator.add(np.vstack(parts))
    return aggregator


def times_of(*parts: NDArray[np.int64]) -> StageTimes:
    return aggregated(*parts).stage_times(0)


def test_nothing_is_reported_when_there_were_no_steps() -> None:
    assert StepAggregator().stage_times(0) is None
    assert aggregated(rows(3, NOT_A_STEP, validation=5)).stage_times(0) is None


def test_time_between_steps_counts_in_the_span_and_not_in_the_steps() -> None:
    times = times_of(rows(30, forward=10), rows(1, NOT_A_STEP, epoch_boundary=200), rows(30, forward=10))
    assert times.n_steps == 60
    assert times.span_s == pytest.approx(0.8)
    assert times.step_s.p99 == pytest.approx(0.01, rel=0.01)
    assert times.phases["epoch_boundary"].share == pytest.approx(0.25)
    assert times.phases["epoch_boundary"].p50_s is None
    assert sum(p.share for p in times.phases.values()) == pytest.approx(1.0)


def test_totals_belong_to_all_steps_when_epochs_are_short() -> None:
    times = times_of(*[rows(1, kind, forward=10) for _ in range(30) for kind in (FIRST_STEP, USUAL_STEP)])
    assert (times.n_steps, times.n_span_steps) == (30, 60)
    assert times.phases["forward"].total_s / times.n_span_steps == pytest.approx(times.step_s.mean)


@pytest.mark.parametrize(
    ("n_smaller", "samples", "fastest_s"),
    [
        (4, 4, 0.008),
        (4, 2, 0.010),  # the last batches of epochs
        (40, 2, 0.008),  # so many smaller batches that they count
    ],
)
def test_fastest_steps_are_those_of_full_batches_when_some_are_smaller(n_smaller, samples, fastest_s) -> None:
    times = times_of(rows(160, forward=10), rows(n_smaller, samples=samples, forward=8))
    assert times.phases["forward"].p01_s == pytest.approx(fastest_s, rel=0.01)


def test_time_of_perfdoctors_own_hooks_is_summed_without_rows_that_are_left_out() -> None:
    usual, left_out = rows(10, forward=10, callbacks=1), rows(3, LEFT_OUT_STEP, forward=10, callbacks=9)
    usual[:, OWN], left_out[:, OWN] = MS // 2, 8 * MS
    times = times_of(usual, left_out)
    assert times.own_s == pytest.approx(0.005)
    assert times.span_s == pytest.approx(0.11)


def test_validation_of_a_row_is_no_part_of_its_step() -> None:
    times = times_of(rows(10, forward=10), rows(1, forward=10, validation=500, checkpoint=100))
    assert times.step_s.p99 == pytest.approx(0.01, rel=0.01)
    assert times.phases["validation"].total_s == pytest.approx(0.5)


def test_slow_steps_are_outliers_with_the_phase_that_grew() -> None:
    times = times_of(
        rows(50, forward=10, data_wait=1),
        rows(1, forward=10, data_wait=90),
        rows(20, forward=10, data_wait=1),
        rows(1, forward=60, data_wait=1),
        rows(1, forward=25, data_wait=1),  # not three times the median
    )
    outliers = times.outliers
    assert outliers.n == 2
    assert outliers.threshold_s == pytest.approx(0.033, rel=0.01)
    assert [(worst.step, worst.phase) for worst in outliers.worst] == [(50, "data_wait"), (71, "forward")]
    assert outliers.excess_by_phase_s == pytest.approx({"data_wait": 0.089, "forward": 0.050}, rel=0.01)
    assert outliers.excess_s == pytest.approx(0.139, rel=0.01)


def test_outliers_are_not_reported_when_steps_are_few() -> None:
    times = times_of(rows(18, forward=10), rows(1, forward=90))
    assert times.outliers is None
    assert times.is_steady is None


def test_only_the_ten_slowest_are_kept_when_many_are_slow() -> None:
    aggregator = aggregated(rows(100, forward=10))
    for i in range(30):
        aggregator.add(rows(1, forward=100 + i))
        aggregator.add(rows(10, forward=10))
    times = aggregator.stage_times(0)
    assert times.outliers.n == 30
    assert [w.duration_s for w in times.outliers.worst] == pytest.approx([(129 - i) / 1e3 for i in range(10)])


@pytest.mark.parametrize("period", [2, 4, 7])
def test_waits_that_come_in_a_rhythm_are_bursts(period: int) -> None:
    parts = [rows(1, forward=10, data_wait=8 if i % period == 0 else 0) for i in range(40 * period)]
    times = times_of(*parts)
    assert (times.fetch.burst_period, times.fetch.burst_fraction) == (period, pytest.approx(1.0))
    assert times.fetch.waiting_fraction == pytest.approx(1 / period)


def test_there_is_no_rhythm_when_waits_are_few() -> None:
    times = times_of(rows(100, forward=10), rows(5, forward=10, data_wait=8))
    assert times.fetch.burst_period is None
    assert times.fetch.p90_over_p50 is None  # the median is 0


def test_first_fetch_is_moved_to_the_boundary_but_for_a_usual_one() -> None:
    times = times_of(rows(20, forward=10, data_wait=2), rows(1, FIRST_STEP, forward=10, data_wait=52))
    assert times.n_steps == 20
    assert times.phases["data_wait"].total_s == pytest.approx(21 * 0.002)
    assert times.phases["epoch_boundary"].total_s == pytest.approx(0.050)
    assert times.fetch.first_s == pytest.approx((0.052,))


def test_first_fetch_is_moved_when_it_is_added_alone() -> None:
    aggregator = aggregated(rows(20, forward=10, data_wait=2))
    aggregator.add(rows(1, FIRST_STEP, forward=10, data_wait=52))
    times = aggregator.stage_times(0)
    assert times.phases["epoch_boundary"].total_s == pytest.approx(0.050, rel=0.01)


def test_samples_are_unknown_when_those_of_one_step_are() -> None:
    assert times_of(rows(5, forward=1)).samples_per_s == pytest.approx(4000)
    times = times_of(rows(5, forward=1), rows(1, samples=-1, forward=1))
    assert times.samples_per_s is None


def test_profiled_steps_are_left_out_of_everything() -> None:
    plain = times_of(rows(40, forward=10))
    times = times_of(rows(20, forward=10), rows(5, LEFT_OUT_STEP, forward=900, data_wait=900), rows(20, forward=10))
    assert times.span_s == plain.span_s
    assert times.step_s == plain.step_s
    assert times.outliers == plain.outliers
    assert set(times.phases) == {"forward"}
    # They pass all the same: later steps keep their numbers.
    assert times.timeline[-1].first_step > plain.timeline[-1].first_step


@pytest.mark.parametrize("batches", [1, 3, 17, 100])
def test_timeline_merges_blocks_and_loses_no_step(batches: int) -> None:
    n = 6000
    aggregator = StepAggregator()
    durations = 10 + np.arange(n) % 7
    for part in np.array_split(np.arange(n), batches):
        made = rows(len(part))
        made[:, PHASE_INDEX["forward"]] = durations[part] * MS
        aggregator.add(made)
    times = aggregator.stage_times(0)
    blocks = times.timeline
    assert 256 <= len(blocks) <= 512
    assert sum(b.n_steps for b in blocks) == n
    assert len({b.n_steps for b in blocks[:-1]}) == 1
    assert [b.first_step for b in blocks] == list(np.cumsum([0, *(b.n_steps for b in blocks[:-1])]))
    assert sum(b.step_s * b.n_steps for b in blocks) == pytest.approx(durations.sum() / 1e3)
    assert max(b.max_step_s for b in blocks) == pytest.approx(0.016)
    starts = [b.start_s for b in blocks]
    assert starts == sorted(starts)
    assert starts[-1] + blocks[-1].step_s * blocks[-1].n_steps == pytest.approx(durations.sum() / 1e3)


def test_run_is_not_steady_when_its_halves_differ() -> None:
    assert times_of(rows(100, forward=10)).is_steady is True
    assert times_of(rows(50, forward=10), rows(50, forward=12)).is_steady is False


def test_mean_and_spread_are_exact_while_quantiles_are_within_one_percent() -> None:
    random = np.random.default_rng(3)
    durations = random.integers(5 * MS, 20 * MS, 2000)
    made = rows(2000)
    made[:, PHASE_INDEX["forward"]] = durations
    times = times_of(made)
    assert times.step_s.mean == pytest.approx(durations.mean() / 1e9)
    assert times.step_s.std == pytest.approx(durations.std() / 1e9)
    assert times.step_s.p95 == pytest.approx(np.quantile(durations, 0.95) / 1e9, rel=0.011)


BLOCK = np.vstack([
    rows(forward=50_000), rows(1, NOT_A_STEP, epoch_boundary=7_000), rows(1, FIRST_STEP, forward=5_000),
    rows(forward=1_000), rows(1, LEFT_OUT_STEP, forward=90_000), rows(1, LEFT_OUT_TIME, other=80_000),
    rows(backward=2_000), rows(1, NOT_A_STEP, validation=30_000),
])  # fmt: skip


def test_usual_steps_are_read_after_those_left_out() -> None:
    assert usual_steps_s(BLOCK, 1) == pytest.approx({1: 1.0, 3: 2.0})
    assert usual_steps_s(BLOCK, 3) == pytest.approx({1: 2.0})
    assert usual_steps_s(BLOCK, 5) == {}


def test_time_of_an_epoch_has_its_boundary_and_neither_validation_nor_what_is_left_out() -> None:
    seconds, n_steps = time_with_boundaries_s(BLOCK)
    assert seconds == pytest.approx(50 + 7 + 5 + 1 + 2)
    assert n_steps == 4
