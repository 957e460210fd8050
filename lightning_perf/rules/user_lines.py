"""The lines of the user's code that take time, from samples of the training thread's stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lightning_perf.records import HostLine, HostPhase, Session, StageTimes

from .thresholds import LINE_MIN_SAMPLES, NORMAL_Z95
from .wording import place, site_of

COLLECT = "gc.collect"
"""Collections are counted one by one (PD508), which is more certain than samples of the line that asks for them."""


_COMPUTING = ("transfer", "forward", "backward", "optimizer", "validation")
"""In these phases torch operators are the training itself; elsewhere they are a part of what the line costs."""


class LineTime(NamedTuple):
    """A line of the user's, and what it takes: outside torch operators where the phase is for computing.

    Attributes:
        line: The line.
        phase: The phase that it takes its time in.
        seconds: Of the steady span.
        low_s, high_s: The ends of the 95 % interval of ``seconds``.
        n: Samples behind it.
    """

    line: HostLine
    phase: str
    seconds: float
    low_s: float
    high_s: float
    n: int

    @property
    def where(self) -> str:
        """The line as a sentence names it, e.g. ``"training_step (model.py:81)"``."""
        return place(self.line.function, site_of(self.line.file, self.line.line))

    @property
    def doing(self) -> str:
        """What it calls, e.g. ``" in json.loads"``; empty where the time passes in its own code."""
        return f" in {self.line.call}" if self.line.call else ""


def lines_of(session: Session, *phases: str) -> list[LineTime]:
    """Return the lines that take time in these phases, costliest first; none where no stack was sampled.

    Args:
        session: The session.
        phases: By name; none for all.
    """
    profile, steady = session.host_profile, session.steady
    if profile is None or steady is None:
        return []
    found = [
        _line_time(line, name, phase, _phase_s(steady, name))
        for name, phase in profile.phases.items()
        if not phases or name in phases
        for line in phase.lines
        if line.n_samples >= LINE_MIN_SAMPLES
    ]
    return sorted(found, key=lambda time: -time.seconds)


def whole_lines_of(session: Session, phases: Sequence[str], is_wanted: Callable[[HostLine], bool]) -> list[LineTime]:
    """Return the lines that are wanted, with the operators that they run, costliest first.

    Args:
        session: The session.
        phases: By name.
        is_wanted: Whether a line is.
    """
    profile, steady = session.host_profile, session.steady
    if profile is None or steady is None:
        return []
    found = [
        _line_time(line, name, phase, _phase_s(steady, name), with_operators=True)
        for name, phase in profile.phases.items()
        if name in phases
        for line in phase.lines
        if line.n_samples >= LINE_MIN_SAMPLES and is_wanted(line)
    ]
    return sorted(found, key=lambda time: -time.seconds)


def is_metric(line: HostLine) -> bool:
    """Return whether a line spends its time in a metric of torchmetrics."""
    return line.call.startswith("torchmetrics.")


def is_anomaly_trace(line: HostLine) -> bool:
    """Return whether a line spends its time in the stack traces that anomaly detection takes of each operator."""
    return line.call == "torch.format_stack"


def is_logging(line: HostLine) -> bool:
    """Return whether a line spends its time in ``self.log``, which checks its arguments in the hook that logs."""
    return line.call.endswith(("LightningModule.log", "LightningModule.log_dict"))


def host_s(session: Session, phase: str) -> float:
    """Return the seconds of a phase that pass in the user's lines and the collector, outside torch operators."""
    lines_s = sum(time.seconds for time in lines_of(session, phase) if not is_collecting(session, time.line))
    return lines_s + collecting_s(session, phase)


def slow_lines_of(session: Session) -> list[tuple[HostLine | None, float, float]]:
    """Return what slow steps do once they have lasted three times the median, and the share of that time it takes.

    Costliest first, each with the lower end of the share's 95 % interval. None stands for automatic garbage
    collections. Empty where no sample fell into a slow step.

    Args:
        session: The session.
    """
    phases = session.host_profile.slow_steps.values() if session.host_profile is not None else ()
    found: list[tuple[HostLine | None, float, float]] = [
        (line, phase.share * line.share, phase.share * _wilson(line.share, phase.n_effective)[0])
        for phase in phases
        for line in phase.lines
    ]
    collecting = sum(phase.share * phase.gc_fraction for phase in phases)
    if collecting:  # timed by the collector's callbacks
        found.append((None, collecting, collecting))
    return sorted(found, key=lambda item: -item[1])


def is_collecting(session: Session, line: HostLine) -> bool:
    """Return whether a line asks for garbage collections; samples of it may show the callbacks that these make."""
    asked = session.collections.asked if session.collections is not None else ()
    return line.call == COLLECT or any((one.file, one.line) == (line.file, line.line) for one in asked)


def collecting_s(session: Session, phase: str) -> float:
    """Return the seconds of a phase of the steady span in the garbage collector."""
    found, steady = session.collections, session.steady
    if found is None or steady is None or found.span_s <= 0:
        return 0.0
    asked_s = sum(each.total_s for each in found.asked if each.phase == phase)
    return (found.automatic_by_phase_s.get(phase, 0.0) + asked_s) * steady.span_s / found.span_s


def _line_time(line: HostLine, name: str, phase: HostPhase, seconds: float, with_operators: bool = False) -> LineTime:
    without_operators = name in _COMPUTING and not with_operators
    share = line.share * (1 - line.operator_fraction) if without_operators else line.share
    low, high = _wilson(share, phase.n_effective)
    return LineTime(line, name, share * seconds, low * seconds, high * seconds, line.n_samples)


def _wilson(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's interval of a share of so many samples."""
    middle = (share + NORMAL_Z95**2 / (2 * n)) / (1 + NORMAL_Z95**2 / n)
    half = NORMAL_Z95 / (1 + NORMAL_Z95**2 / n) * math.sqrt(share * (1 - share) / n + NORMAL_Z95**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _phase_s(steady: StageTimes, name: str) -> float:
    phase = steady.phases.get(name)
    return 0.0 if phase is None else phase.total_s
