"""Verdicts from an interval and the noise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.records import Interval
from lightning_perf.stats.verdicts import MAX_MORE, classify, compare, repeats_needed


def interval(low: float, high: float) -> Interval:
    return Interval(value=math.sqrt(low * high), low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.0201, 1.5, "improved"),
        (1.02, 1.5, "inconclusive"),
        (0.5, 0.9803, "regressed"),
        (0.5, 1 / 1.02, "inconclusive"),
        (0.99, 1.01, "no_change"),
        (1 / 1.02, 1.02, "no_change"),
        (0.99, 1.0201, "inconclusive"),
        (0.98, 1.01, "inconclusive"),
        (0.5, 2.0, "inconclusive"),
    ],
)
def test_verdict_follows_the_interval_with_a_band_of_two_percent(low: float, high: float, expected: str) -> None:
    assert classify(interval(low, high), 0.02) == expected


@given(st.floats(0.1, 10), st.floats(1, 3), st.floats(0.01, 0.05))
def test_call_is_mirrored_when_the_arms_are_swapped(centre: float, reach: float, band: float) -> None:
    mirror = {"improved": "regressed", "regressed": "improved"}
    one, other = interval(centre / reach, centre * reach), interval(1 / centre / reach, reach / centre)
    edges = [abs(math.log(x)) for x in (one.low, one.high)]
    if min(abs(edge - math.log1p(band)) for edge in edges) > 1e-9:
        assert classify(other, band) == mirror.get(classify(one, band), classify(one, band))


def test_comparison_improves_when_all_runs_are_faster() -> None:
    found = compare([[0.030], [0.0301], [0.0299], [0.0302]], [[0.0200], [0.0201], [0.0199]], 0.01)
    assert found.verdict == "improved"
    assert found.speedup.value == pytest.approx(1.5, rel=0.01)
    assert found.p_value == pytest.approx(2 / 35)
    assert found.reason == ""
    assert found.repeats_needed is None


def test_comparison_is_inconclusive_when_an_arm_ran_once() -> None:
    found = compare([[0.03], [0.03]], [[0.02]], 0.01)
    assert (found.verdict, found.speedup, found.repeats_needed) == ("inconclusive", None, 1)
    assert found.reason == "an interval needs 2 runs of each arm"
    assert compare([[0.03], [0.03]], [], 0.01).repeats_needed == 2


def test_comparison_is_inconclusive_when_single_runs_overlap_and_the_test_has_power() -> None:
    base = [[level] for level in (0.989, 1.121, 0.963, 1.082, 0.973, 0.827)]
    found = compare(base, [[0.839], [0.843], [0.843]], 0.01)
    assert found.speedup.low > 1.01
    assert found.verdict == "inconclusive"
    assert found.reason == "the interval is beyond the noise, but single runs overlap (p 0.10)"
    # Two runs fewer, and no p at this level can be reached: then the interval alone decides.
    assert compare([[1.0], [1.01], [0.9]], [[0.6], [0.61], [0.6]], 0.01).verdict == "improved"


def test_comparison_names_the_number_of_repeats_that_decides_it() -> None:
    base, new = [[1.0], [1.03], [1.0], [1.03]], [[0.95], [0.98]]
    found = compare(base, new, 0.01)
    assert found.verdict == "inconclusive"
    assert found.repeats_needed is not None
    assert (
        found.reason
        == f"about {found.repeats_needed} more repeat{'s' * (found.repeats_needed > 1)} would probably settle it"
    )
    more = found.repeats_needed
    grown_base = base + [[1.0], [1.03]] * more
    grown_new = new + [[0.95], [0.98]] * ((more + 1) // 2)
    assert compare(grown_base, grown_new, 0.01).verdict == "improved"


def test_verdict_is_never_no_change_when_the_difference_exceeds_five_percent() -> None:
    assert classify(interval(0.96, 1.049), 0.2) == "no_change"
    assert classify(interval(0.96, 1.051), 0.2) == "inconclusive"
    assert classify(interval(1.1, 1.19), 0.2) == "inconclusive"
    assert classify(interval(1.21, 1.3), 0.2) == "improved"
    found = compare([[1.0], [1.03], [1.0]], [[0.9], [0.93]], 0.2)
    assert found.repeats_needed is None
    assert found.reason == "1.10x is within the noise (±20.0 %), so more repeats would not settle it"


def test_number_of_repeats_is_none_when_the_ratio_is_at_the_edge_of_the_band() -> None:
    base, new = [[1.0], [1.03]], [[1.0 / 1.02], [1.03 / 1.02]]
    assert repeats_needed(base, new, 0.02) is None
    assert "is too near the edge of the noise (±2.0 %)" in compare(base, new, 0.02).reason


@given(st.floats(0.0, 0.3), st.floats(0.001, 0.05))
def test_repeats_needed_grow_with_the_noise(effect: float, noise: float) -> None:
    def needed(spread: float) -> int:
        base, new = (
            [[math.exp(-spread)], [math.exp(spread)]],
            [[math.exp(-effect - spread)], [math.exp(-effect + spread)]],
        )
        return repeats_needed(base, new, 0.01) or MAX_MORE + 1

    assert 1 <= needed(noise) <= needed(2 * noise)
