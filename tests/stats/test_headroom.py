"""The largest batch that fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.stats.headroom import fit_samples, largest_batch


def test_line_is_found_when_batches_differ_in_size() -> None:
    fixed, per_sample = fit_samples([(8, 1800), (16, 2600), (16, 2600), (4, 1400)]) or (0, 0)
    assert fixed == pytest.approx(1000)
    assert per_sample == pytest.approx(100)


@pytest.mark.parametrize("observed", [[], [(8, 100), (8, 120)], [(8, 200), (16, 100)]])
def test_there_is_no_line_when_sizes_are_one_or_do_not_matter(observed: list[tuple[int, int]]) -> None:
    assert fit_samples(observed) is None


@given(
    capacity=st.integers(0, 10**12), margin=st.floats(0, 0.5), fixed=st.integers(0, 10**12), each=st.floats(1, 10**9)
)
def test_largest_batch_fits_and_one_more_does_not(capacity: int, margin: float, fixed: int, each: float) -> None:
    n = largest_batch(capacity, margin, fixed, each)
    limit = capacity * (1 - margin)
    slack = 1e-6 * (limit + fixed + each)
    assert n == 0 or fixed + n * each <= limit + slack
    assert fixed + (n + 1) * each > limit - slack


def test_largest_batch_refuses_when_a_sample_takes_nothing() -> None:
    with pytest.raises(ValueError, match="expected more than 0"):
        largest_batch(100, 0.1, 10, 0)
