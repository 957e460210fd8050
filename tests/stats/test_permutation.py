"""The exact test, and the smallest p-value of few runs."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from lightning_perf.stats.verdicts import LEVEL, permutation_p, smallest_p

THOUSANDTHS = st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=5)
VALUES = THOUSANDTHS.map(lambda values: [value / 1000 for value in values])


@given(THOUSANDTHS, THOUSANDTHS)
@example([3143, 7422, 3143], [7422, 0, 7834, 7422, 0])
@settings(max_examples=40, deadline=None)
def test_p_is_that_of_scipy_s_exact_test(a: list[int], b: list[int]) -> None:
    if min(len(a), len(b)) < 2:
        return
    # Sums of integers are exact. In decimals, scipy takes equal means for different ones where rounding differs.
    expected = stats.permutation_test((a, b), lambda x, y, axis: np.sum(x, axis), n_resamples=np.inf, vectorized=True)
    p_value = permutation_p([value / 1000 for value in a], [value / 1000 for value in b])
    assert p_value == pytest.approx(expected.pvalue, abs=1e-12)


@given(VALUES, VALUES)
def test_p_is_never_below_what_so_few_runs_can_reach(a: list[float], b: list[float]) -> None:
    p_value = permutation_p(a, b)
    assert p_value is not None
    assert smallest_p(len(a), len(b)) - 1e-12 <= p_value <= 1


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 3), (6, 3), (5, 6), (6, 6)])
def test_smallest_p_is_reached_when_the_groups_are_wholly_apart(m: int, n: int) -> None:
    assert smallest_p(m, n) == 2 / math.comb(m + n, m)
    assert permutation_p(list(range(m)), [100 + x for x in range(n)]) == pytest.approx(smallest_p(m, n))


@pytest.mark.parametrize(
    ("m", "n", "level", "reaches"),
    [
        (3, 3, 0.05, False),  # 0.1
        (4, 3, 0.05, False),  # 0.0571
        (4, 4, 0.05, True),  # 0.0286
        (6, 3, 0.05, True),  # 0.0238
        (5, 5, 0.005, False),  # 0.0079
        (6, 5, 0.0025, False),  # 0.0043
        (6, 6, 0.0025, True),  # 0.0022
        (6, 6, 0.001, False),
    ],
)
def test_a_level_is_claimed_only_where_it_can_be_reached(m: int, n: int, level: float, reaches: bool) -> None:
    apart = list(range(m)), [100 + x for x in range(n)]
    assert (smallest_p(m, n) <= level) is reaches
    p_value = permutation_p(*apart)
    assert p_value is not None
    assert (p_value <= level) is reaches


def test_groups_that_overlap_are_not_significant() -> None:
    assert (permutation_p([1, 2, 3, 4], [1.5, 2.5, 3.5, 4.5]) or 0.0) > LEVEL


def test_p_is_one_when_all_values_are_the_same_whatever_the_order_of_summing() -> None:
    assert permutation_p([0.1 + 0.2, 0.3, 0.1], [0.3, 0.1 + 0.2, 0.1]) == pytest.approx(1.0)
    assert permutation_p([0.1] * 4, [0.1] * 4) == 1.0


def test_p_is_none_when_a_group_is_empty_or_splits_are_too_many() -> None:
    assert permutation_p([], [1.0]) is None
    assert permutation_p([0.0] * 15, [1.0] * 15) is None
