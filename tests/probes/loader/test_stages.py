"""What the stages of a probe decide."""

from __future__ import annotations

import pytest

from lightning_perf.probes.loader.stages import ENOUGH_SLOW, _has_few_slow


@pytest.mark.parametrize(("n_slow", "expected"), [(0, False), (1, True), (ENOUGH_SLOW - 1, True), (ENOUGH_SLOW, False)])
def test_more_samples_are_looked_at_when_only_few_of_them_were_slow(n_slow: int, expected: bool) -> None:
    assert _has_few_slow([0.001] * 90 + [0.0051] * n_slow + [0.0049] * 5) is expected
