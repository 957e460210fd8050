"""Replays of one step's operators, without and with treatments."""

from .base import Record
from .trial import Interval


class Hypothesis(Record, frozen=True, kw_only=True):
    """A request of a rule to measure the effect of a treatment on this step's operators.

    Attributes:
        treatment: Id of the treatment, with its value if any, e.g. ``"threads=2"``.
        at_stake_s: Seconds of the steady span that it affects; larger ones are replayed first.
        least_part: Fraction of these seconds that must be saved to make the step noticeably faster; 0 for any.
    """

    treatment: str
    at_stake_s: float
    least_part: float = 0.0


class Replayed(Record, frozen=True, kw_only=True):
    """The measured effect of one treatment on operators of a step.

    Attributes:
        treatment: As in ``Hypothesis``.
        n_operators: Distinct operators (by name, shapes and dtypes), or sequences of them, that were replayed.
        n_rounds: Pairs of passes over them, one without and one with the treatment.
        before_s: Seconds per step without the treatment, forward and backward; None if nothing was timed.
        after_s: Seconds per step with the treatment; with a larger batch, for the same number of samples.
        seen_s: Seconds of the same operators in the sampled step; None on a device, where operators are not timed.
        concerned_s: Seconds in the sampled step of all operators that the treatment changes, replayed or not; None on a
            device.
        speedup: ``before_s`` ÷ ``after_s``, with its 95 % interval, which includes that of the same operators with all
            tensors in caches; None if the rounds do not give one.
        is_negligible: Whether no speedup can show: the operators that the treatment changes take too little time, or
            one of them fails with it.
        reason: Why there is no speedup; empty otherwise.
    """

    treatment: str
    n_operators: int = 0
    n_rounds: int = 0
    before_s: float | None = None
    after_s: float | None = None
    seen_s: float | None = None
    concerned_s: float | None = None
    speedup: Interval | None = None
    is_negligible: bool = False
    took_s: float = 0.0
    reason: str = ""


class Replay(Record, frozen=True, kw_only=True):
    """Replays of one run, made in pauses of the training on random tensors of the same shapes.

    Attributes:
        operators_s: Seconds of all operators of the sampled step, forward and backward; None on a device.
        n_operators: Distinct forward operators of that step.
        results: One entry per treatment that was replayed.
        budget_s: Limit of ``took_s``: 1 % of the run, at least 0.5 s, at most 10 s.
    """

    operators_s: float | None = None
    n_operators: int = 0
    results: tuple[Replayed, ...] = ()
    took_s: float = 0.0
    budget_s: float = 0.0
