"""Comparison of an arm's losses with the baseline."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lightning_perf.records import ArmRun, Safety
from lightning_perf.trials.losses import MIN_LOSSES, loss_parity
from trials.runs import run

N = 160


def course(seed: int = 0, batch_noise: float = 0.1) -> NDArray[np.float64]:
    """Return a falling loss with batch noise."""
    return 0.3 + 2.0 * np.exp(-np.arange(N) / 50) + batch_noise * np.random.default_rng(seed).normal(size=N)


def runs(*courses: NDArray[np.float64], every: int = 1) -> list[ArmRun]:
    return [run("x", losses=tuple(one.tolist()), loss_every=every) for one in courses]


REPEATED = runs(course(), course(), course())


@pytest.mark.parametrize("safety", ["exact", "numerics"])
def test_losses_are_identical_when_they_are_so_digit_by_digit(safety: Safety) -> None:
    assert loss_parity(runs(course(), course()), REPEATED, safety) == "identical"


def test_exact_arm_is_within_noise_when_only_the_last_digits_differ() -> None:
    summed_otherwise = course() * (1 + 3e-7 * np.random.default_rng(1).normal(size=N))
    assert loss_parity(runs(summed_otherwise), REPEATED, "exact") == "within_noise"


def test_exact_arm_is_within_noise_when_batches_came_in_another_order() -> None:
    assert loss_parity(runs(course(seed=7)), REPEATED, "exact") == "within_noise"


def test_bfloat16_rounding_is_within_noise_for_numerics_but_not_for_exact() -> None:
    smooth = course(batch_noise=0.0)
    rounded = smooth * (1 + 0.01 * np.sin(np.arange(N)) + 0.01)
    baseline = runs(smooth, smooth)
    assert loss_parity(runs(rounded), baseline, "numerics") == "within_noise"
    assert loss_parity(runs(rounded), baseline, "exact") == "diverged"


@pytest.mark.parametrize("safety", ["exact", "numerics"])
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(course() + 0.4, id="higher throughout"),
        pytest.param(np.where(np.arange(N) < 80, course(), 2.0 + 0 * course()), id="fails to fall any further"),
        pytest.param(course() * 1.02 ** np.arange(N), id="blows up"),
        pytest.param(2.3 + 0 * course(), id="learns nothing"),
    ],
)
def test_losses_diverge_when_the_training_differs(other: NDArray[np.float64], safety: Safety) -> None:
    assert loss_parity(runs(other, other), REPEATED, safety) == "diverged"


def test_envelope_is_as_wide_as_the_baseline_differs_from_itself() -> None:
    smooth = course(batch_noise=0.0)
    wandering = runs(smooth, smooth + 0.2, smooth - 0.2)
    assert loss_parity(runs(smooth + 0.25), wandering, "exact") == "within_noise"
    assert loss_parity(runs(smooth + 0.25), runs(smooth, smooth), "exact") == "diverged"


def test_losses_agree_when_single_windows_differ() -> None:
    spiked = course()
    spiked[40:44] += 5
    assert loss_parity(runs(spiked), REPEATED, "exact") == "within_noise"


def test_semantics_are_not_judged() -> None:
    assert loss_parity(runs(course() + 3), REPEATED, "semantics") == "not_judged"


def test_losses_are_unknown_when_there_are_too_few_or_none() -> None:
    short = runs(course()[: MIN_LOSSES - 1])
    assert loss_parity(short, REPEATED, "exact") == "unknown"
    assert loss_parity(runs(course()[:MIN_LOSSES]), REPEATED, "exact") == "identical"
    assert loss_parity([run("x", losses=())], REPEATED, "exact") == "unknown"
    assert loss_parity(runs(course()), [], "exact") == "unknown"
    assert loss_parity([], REPEATED, "exact") == "unknown"


def test_losses_are_compared_at_the_same_batches_when_arms_log_at_other_intervals() -> None:
    assert loss_parity(runs(course()[::3], every=3), runs(course()[::2], every=2), "exact") == "identical"


def test_losses_are_unknown_when_the_baseline_has_nan_and_diverged_when_only_the_arm_has() -> None:
    broken = course()
    broken[50] = math.nan
    assert loss_parity(runs(course()), runs(broken), "exact") == "unknown"
    assert loss_parity(runs(broken), REPEATED, "exact") == "diverged"


@given(seed=st.integers(1, 10_000), noise=st.sampled_from([0.01, 0.1, 0.5]))
@settings(max_examples=60, deadline=None)
def test_another_order_of_batches_hardly_ever_counts_as_divergence(seed: int, noise: float) -> None:
    baseline = runs(course(0, noise), course(0, noise))
    assert loss_parity(runs(course(seed, noise), course(seed + 20_000, noise)), baseline, "exact") != "diverged"
