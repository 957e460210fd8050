import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.stats.quantiles import RELATIVE_ERROR, LogHistograms

durations_ns = st.lists(st.integers(101, 10**12), min_size=1, max_size=300)
probabilities = st.floats(0.01, 1.0)


@given(durations_ns, probabilities)
def test_quantile_is_within_one_percent_of_numpys(values: list[int], probability: float) -> None:
    histogram = LogHistograms(1)
    histogram.add(np.array(values, dtype=np.int64)[:, None])
    exact = float(np.quantile(values, probability, method="inverted_cdf"))
    assert histogram.quantiles(0, (probability,))[0] == pytest.approx(exact, rel=RELATIVE_ERROR * 1.001)


@given(st.lists(durations_ns, min_size=1, max_size=6))
def test_quantiles_do_not_depend_on_how_values_were_cut_into_batches(batches: list[list[int]]) -> None:
    together, apart = LogHistograms(1), LogHistograms(1)
    together.add(np.array([v for batch in batches for v in batch], dtype=np.int64)[:, None])
    for batch in batches:
        apart.add(np.array(batch, dtype=np.int64)[:, None])
    assert together.quantiles(0, (0.1, 0.5, 0.99)) == apart.quantiles(0, (0.1, 0.5, 0.99))
    assert together.n == apart.n


def test_series_are_kept_apart() -> None:
    histograms = LogHistograms(3)
    histograms.add(np.array([[1000, 0, 10**9]] * 5, dtype=np.int64))
    assert [histograms.quantiles(i, (0.5,))[0] for i in range(3)] == [
        pytest.approx(1000, rel=0.01),
        0.0,
        pytest.approx(1e9, rel=0.01),
    ]


def test_quantile_is_nan_when_nothing_came_yet() -> None:
    histogram = LogHistograms(1)
    histogram.add(np.zeros((0, 1), dtype=np.int64))
    assert all(math.isnan(q) for q in histogram.quantiles(0, (0.5, 0.9)))


def test_values_below_a_clock_read_count_as_zero_and_huge_ones_are_kept() -> None:
    histogram = LogHistograms(1)
    histogram.add(np.array([[0], [99], [10**15]], dtype=np.int64))
    low, middle, high = histogram.quantiles(0, (0.1, 0.6, 1.0))
    assert (low, middle) == (0.0, 0.0)
    assert high > 9e12
