"""Steps as means of blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.stats.blocks import BLOCK_STEPS, steady_blocks


def test_blocks_are_of_twenty_steps_when_steps_are_short() -> None:
    blocks = steady_blocks([0.01] * 101)
    assert blocks.block_steps == BLOCK_STEPS
    assert blocks.steady_from == 1
    assert blocks.means_s == pytest.approx((0.01,) * 5)
    assert blocks.reason == ""


@pytest.mark.parametrize(("step_s", "steps_a_block"), [(0.04, 20), (0.1, 10), (0.34, 3), (1.0, 1), (7.0, 1)])
def test_blocks_take_a_second_when_steps_are_long(step_s: float, steps_a_block: int) -> None:
    assert steady_blocks([step_s] * 100).block_steps == steps_a_block


def test_warm_up_is_left_out() -> None:
    blocks = steady_blocks([3.0, 2.0, 1.0, *[0.01] * 80])
    assert blocks.steady_from == 3
    assert blocks.means_s == pytest.approx((0.01,) * 4)


def test_there_are_no_blocks_when_the_halves_differ() -> None:
    blocks = steady_blocks([0.01] * 60 + [0.02] * 60)
    assert blocks.means_s == ()
    assert blocks.steady_from is None
    assert "the halves of the run differ" in blocks.reason


def test_blocks_need_two_and_say_how_many_steps_that_is() -> None:
    assert len(steady_blocks([0.01] * 41).means_s) == 2
    short = steady_blocks([0.01] * 40)
    assert short.means_s == ()
    assert short.reason == "39 steps after the warm-up of 1; 40 are needed for 2 blocks"
    assert steady_blocks([]).reason == "no step was measured"


@given(st.integers(41, 300), st.integers(0, 1000))
def test_mean_of_blocks_is_the_mean_of_their_steps(n: int, seed: int) -> None:
    steps = 0.01 * np.exp(0.02 * np.random.default_rng(seed).normal(size=n))
    blocks = steady_blocks(steps.tolist())
    assert blocks.steady_from is not None
    used = steps[blocks.steady_from :][: len(blocks.means_s) * blocks.block_steps]
    assert np.mean(blocks.means_s) == pytest.approx(used.mean())
