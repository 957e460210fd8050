import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.stats.steady import halves_agree, warmup_length


def steps(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("step_ns", "expected"),
    [
        (steps(), 0),
        (steps(5), 0),
        (steps(5, 5), 1),
        (steps(*[100] * 40), 1),
        (steps(900, 500, 300, 150, *[100] * 40), 4),
        # A fast step in between is no steady state.
        (steps(900, 100, 900, 900, *[100] * 40), 4),
        # Slow for as long as the first half: half is left.
        (steps(*[1000] * 12, *[100] * 8), 10),
        (steps(*[1000] * 10, *[100] * 10), 10),
    ],
)
def test_warmup_ends_with_three_usual_steps(step_ns: np.ndarray, expected: int) -> None:
    assert warmup_length(step_ns) == expected


@given(st.lists(st.integers(1, 10**12), min_size=2, max_size=200))
def test_warmup_is_at_least_the_first_step_and_at_most_half(values: list[int]) -> None:
    length = warmup_length(np.array(values, dtype=np.int64))
    assert 1 <= length <= max(1, len(values) // 2)


@given(st.lists(st.integers(10**6, 10**9), min_size=2, max_size=100), st.integers(2, 1000))
def test_warmup_does_not_depend_on_the_unit(values: list[int], factor: int) -> None:
    step_ns = np.array(values, dtype=np.int64)
    assert warmup_length(step_ns) == warmup_length(step_ns * factor)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.09, 1.09], True),
        ([1.0, 1.0, 1.2, 1.2], False),
        ([1.2, 1.2, 1.0, 1.0], False),
        # One slow step in a half is no change of its median.
        ([1.0, 1.0, 1.0, 1.0, 9.0, 1.0], True),
    ],
)
def test_halves_agree_within_ten_percent_of_their_medians(values: list[float], expected: bool) -> None:
    assert halves_agree(np.array(values)) is expected
