"""Treatments that the autopilot tried in a run."""

from typing import Literal

from .base import Record
from .trial import Interval

TryStatus = Literal["trying", "kept", "undone", "refused"]

LEAST_GAIN = 1.02
"""A treatment is kept if the lower end of its speedup's interval is above this."""


class AutopilotTry(Record, frozen=True, kw_only=True):
    """One treatment that was switched on and off in the user's own run.

    Attributes:
        treatment: With its value, e.g. ``"loader-workers=2"``.
        setting: As a user writes it, e.g. ``"num_workers=2"``.
        finding: Code of the finding that recommended it.
        status: ``trying`` if the run or this record ended within a block; the treatment was then switched off.
        unit: Unit of a block: some steps, or one epoch.
        first_step: Training batches before its first block.
        last_step: Training batches before its last decision or current block.
        is_treated: Whether the last block was with the treatment.
        n_pairs: Blocks measured with the treatment, and as many without.
        block_steps: Batches measured per block; None for epochs.
        speedup: Time per step without it ÷ with it; its interval is corrected for repeated tests. None before enough
            blocks.
        lost_s: Seconds by which blocks with the treatment were slower than those without; 0 if they were faster.
        reason: Why it was refused, or undone although it may be faster; otherwise empty.
    """

    treatment: str
    setting: str
    finding: str
    status: TryStatus
    unit: Literal["step", "epoch"]
    first_step: int
    last_step: int
    is_treated: bool = False
    n_pairs: int = 0
    block_steps: int | None = None
    speedup: Interval | None = None
    lost_s: float = 0.0
    reason: str = ""

    @property
    def gains_nothing(self) -> bool:
        """Whether the whole interval of the speedup is below what a kept treatment must gain."""
        return self.speedup is not None and self.speedup.high < LEAST_GAIN


class Autopilot(Record, frozen=True, kw_only=True):
    """Results of the autopilot (``PerfDoctor(autopilot=...)``).

    Attributes:
        safety: Which treatments it may try: ``exact``, or ``numerics`` for both.
        tries: In order.
        waiting: Treatments that it has not tried yet.
        lost_s: Seconds lost to treatments that made steps slower.
        budget_s: Seconds that it may lose.
        speedup: Speedup of all kept treatments together, compared with the start of the run; None if none was kept.
        code: Code that starts the next run with the kept treatments; empty if none was kept.
    """

    safety: Literal["exact", "numerics"]
    tries: tuple[AutopilotTry, ...] = ()
    waiting: tuple[str, ...] = ()
    lost_s: float = 0.0
    budget_s: float = 0.0
    speedup: Interval | None = None
    code: str = ""

    def latest(self, treatment: str) -> AutopilotTry | None:
        """Return the last try of a treatment, with any value if none is named; None without one."""
        found = (one for one in reversed(self.tries) if treatment in (one.treatment, one.treatment.partition("=")[0]))
        return next(found, None)
