"""What the runs of a trial say of each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lightning_perf.records import Arm, ArmRun, Gain, Interval, Safety


class Judgement(NamedTuple):
    """What became of the arms.

    Attributes:
        arms: In the order in which they first ran.
        noise_band: Relative change that counts as none.
        aa: Ratio of the two halves of the A/A pair; None where there was none.
    """

    arms: tuple[Arm, ...]
    noise_band: float
    aa: Interval | None


def judge(runs: Sequence[ArmRun], predicted: Mapping[str, Gain] = {}, safety: Mapping[str, Safety] = {}) -> Judgement:
    """Judges every arm against the baseline runs of the same stages.

    Args:
        runs: In the order made.
        predicted: By treatment as given, e.g. ``"loader-workers=4"``; used for arms of that treatment alone.
        safety: By treatment as given; ``exact`` where it is not told. An arm is as unsafe as its least safe treatment.
    """
    raise NotImplementedError
