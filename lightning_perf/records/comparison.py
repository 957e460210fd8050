"""Comparison of two sessions, or two groups of them: what became faster or slower, and what else differs."""

from typing import Literal

from .base import Record
from .finding import Severity
from .trial import ArmVerdict, Interval

Change = Literal["faster", "slower", "no_change", "inconclusive"]


class ComparedRun(Record, frozen=True, kw_only=True):
    """One of the sessions compared.

    Attributes:
        source: Where it was read; empty if it was not read from a file.
        started_at: ISO 8601, UTC.
        n_steps: Steady steps; 0 without any.
        device: The first device's name, or the processor's; None if unknown.
    """

    source: str
    id: str
    started_at: str
    n_steps: int
    device: str | None = None


class TimeChange(Record, frozen=True, kw_only=True):
    """Seconds per step, or per sample if batch sizes differ, before and after.

    Attributes:
        name: ``step`` (a typical step: the median of blocks), ``wall`` (the time of an epoch ÷ its steps, including
            validation, checkpoints and other time between steps) or a phase.
        base_s: Before; the geometric mean of several runs. None if not measured.
        ratio: ``new_s`` ÷ ``base_s`` with its 95 % interval: above 1 if the new one is slower. None without an interval
            (see ``reason``).
        change: ``slower``: the whole interval is above 1 + ``Comparison.band_fraction``; ``faster``: it is below the
            inverse of that; ``no_change``: neither, and the interval excludes a change of
            ``Comparison.ruled_out_fraction``; otherwise ``inconclusive``.
        reason: Why there is no interval or no value; empty otherwise.
    """

    name: str
    base_s: float | None
    new_s: float | None
    ratio: Interval | None = None
    change: Change = "inconclusive"
    reason: str = ""


class FigureChange(Record, frozen=True, kw_only=True):
    """A figure without an interval, before and after (the median of several runs).

    Attributes:
        name: E.g. ``"cuda:0 peak allocated"``.
    """

    name: str
    unit: str
    base: float | None
    new: float | None


class FindingChange(Record, frozen=True, kw_only=True):
    """A finding that appeared, disappeared or stayed.

    Attributes:
        base: Its severity before; None if it was not found.
        new: Its severity after; None if it was not found.
        summary: Its summary, from the new session if it is in both.
        unchecked: If it was not found on one side: why the rule could not run there; empty if it ran and passed.
    """

    code: str
    name: str
    base: Severity | None
    new: Severity | None
    summary: str
    unchecked: str = ""


class Difference(Record, frozen=True, kw_only=True):
    """A setting, or a part of the environment, that differs.

    Attributes:
        name: Its path in the session, e.g. ``settings.trainer.precision`` or ``machine.versions.torch``.
        base: Its value as text; None if there is none.
    """

    name: str
    base: str | None
    new: str | None


class TrialChange(Record, frozen=True, kw_only=True):
    """Results of both sides' trials of the same treatments.

    Attributes:
        arm: The treatments, joined by ``+``.
        base: Speedup over the baseline in the first side's own trial; None if it was not measured.
        new: The same for the second side.
        base_verdict: None if the arm was not tried.
    """

    arm: str
    base: Interval | None
    new: Interval | None
    base_verdict: ArmVerdict | None = None
    new_verdict: ArmVerdict | None = None


class Comparison(Record, frozen=True, kw_only=True):
    """One side against the other.

    Attributes:
        per: Whether times are per step, or per sample because the two sides have different batch sizes.
        times: ``step`` first, then ``wall``, then phases by how much they changed.
        figures: Memory, throughput and others without an interval.
        findings: New findings, then findings that disappeared, then the rest.
        environment: Differences in machine and versions.
        run_noise_fraction: Assumed difference between two runs of the same training, not exceeded in 19 of 20 cases.
        band_fraction: Changes smaller than this count as none, whatever their interval.
        ruled_out_fraction: The change that ``no_change`` rules out.
        cautions: Reasons why the comparison is weaker than its figures suggest.
    """

    base: tuple[ComparedRun, ...]
    new: tuple[ComparedRun, ...]
    stage: str
    per: Literal["step", "sample"]
    times: tuple[TimeChange, ...]
    figures: tuple[FigureChange, ...]
    findings: tuple[FindingChange, ...]
    settings: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    trials: tuple[TrialChange, ...]
    run_noise_fraction: float
    run_noise_basis: str
    band_fraction: float
    ruled_out_fraction: float
    cautions: tuple[str, ...] = ()

    def time(self, name: str) -> TimeChange | None:
        """Return the change of ``step``, ``wall`` or a phase; None if it was not compared."""
        return next((one for one in self.times if one.name == name), None)

    def regressions(self, fraction: float) -> tuple[TimeChange, ...]:
        """Return those of ``step`` and ``wall`` that became slower by more than ``fraction`` over their interval."""
        changes = (self.time("step"), self.time("wall"))
        return tuple(one for one in changes if one and one.ratio and one.ratio.low > 1 + fraction)
