"""How long runs are."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.errors import TrialError
from lightning_perf.trials.job import Result
from lightning_perf.trials.sizes import MIN_BLOCKS, TARGET_S, choose_sizes


def seen(step_s: float, n_steps: int = 200, **others: Any) -> Result:
    figures = {"block_means_s": (step_s,) * 8, "steady_from": 5, "train_s": step_s * n_steps, "epochs": 1}
    return Result(status="ok", n_steps=n_steps, **{**figures, **others})


@pytest.mark.parametrize("step_s", [0.0005, 0.01, 0.3, 3.0, 40.0])
def test_run_holds_enough_blocks_whatever_a_step_takes(step_s: float) -> None:
    sizes = choose_sizes(seen(step_s), 300.0, None, wants_epochs=False)
    n_blocks = (sizes.steps - 5) / sizes.block_steps
    assert n_blocks >= MIN_BLOCKS
    assert sizes.block_steps >= 20 or sizes.block_steps * step_s >= 1
    assert sizes.steps * step_s <= max(2 * TARGET_S, 3 * MIN_BLOCKS * sizes.block_steps * step_s)


def test_run_is_no_longer_than_the_training_itself() -> None:
    assert choose_sizes(seen(0.01, 90, is_whole=True), 30.0, None, wants_epochs=False).steps == 90


def test_steps_of_the_user_are_taken_unless_they_hold_no_blocks() -> None:
    assert choose_sizes(seen(0.01), 30.0, 60, wants_epochs=False).steps == 60
    with pytest.raises(TrialError, match="give 45 or more"):
        choose_sizes(seen(0.01), 30.0, 44, wants_epochs=False)


def test_run_holds_ten_epochs_when_they_are_to_be_measured() -> None:
    result = seen(0.05, 300, epochs=2)
    sizes = choose_sizes(result, 60.0, None, wants_epochs=True)
    assert sizes.basis == "wall"
    assert sizes.steps == 10 * 150
    assert choose_sizes(result, 60.0, None, wants_epochs=False).basis == "steps"


@pytest.mark.parametrize(
    ("others", "steps", "basis"),
    [
        ({"epochs": 0}, None, "steps"),
        ({"epochs": 2}, None, "wall"),
        ({"epochs": 2, "train_s": 30.0}, None, "steps"),
        ({"epochs": 2, "train_s": 30.0}, 900, "wall"),
        ({"epochs": 2}, 600, "steps"),
        ({"epochs": 2, "epoch_steps": 105}, 600, "wall"),
        ({"epochs": 2, "epoch_steps": 105, "train_s": 30.0}, None, "wall"),
        ({"epochs": 5, "is_whole": True}, None, "wall"),
        ({"epochs": 4, "is_whole": True}, None, "steps"),
    ],
)
def test_whole_epochs_are_measured_when_enough_of_them_fit(
    others: dict[str, Any], steps: int | None, basis: str
) -> None:
    assert choose_sizes(seen(0.05, 300, **others), 60.0, steps, wants_epochs=True).basis == basis


def test_time_before_training_is_expected_again() -> None:
    sizes = choose_sizes(seen(0.1, 200), 50.0, 100, wants_epochs=False)
    assert sizes.expected_s == pytest.approx(30 + 10)
