"""Lines of the user's code that take time, from stack samples of the training thread."""

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lightning_perf.records import Collections, HostLine, HostPhase, HotFunction, Session, StageTimes
from lightning_perf.records.host_profile import InnerLine

from .rule import required
from .signals import COMPUTE_PHASES, is_cpu_run, own_summary, phase_s
from .thresholds import (
    GC_RAISED_FULL,
    GC_RAISED_MIDDLE,
    GC_RAISED_YOUNG,
    LINE_MIN_SAMPLES,
    NEARBY_LINES,
    NORMAL_Z95,
    NORMAL_Z99,
)
from .wording import place_of, site_of

COLLECT = "gc.collect"
"""Lines that call this are left to PD508, which times each collection instead of sampling."""

MAKING_TENSORS = ("torch.tensor", "torch.as_tensor")
"""Functions that make a tensor of Python's numbers, one by one."""

RARER_COLLECTIONS = "call gc.freeze() before training, and raise the collector's thresholds"

_COMPUTING = ("transfer", *COMPUTE_PHASES, "validation")
"""Phases in which torch operators are excluded from the cost of a line, because they are the training itself.

Without a Trainer, they are that in the phase ``other`` too.
"""


class LineTime(NamedTuple):
    """The time of a line of the user's code in a phase, without torch operators if the phase computes.

    Attributes:
        seconds: Seconds of the steady span; their 95 % interval is ``low_s`` to ``high_s``.
        n: Number of stack samples.
    """

    line: HostLine
    phase: str
    seconds: float
    low_s: float
    high_s: float
    n: int

    @property
    def where(self) -> str:
        """Place of the line in the code, e.g. ``"training_step (model.py:81)"``."""
        return place_of(self.line)

    @property
    def subject(self) -> str:
        """Its place, with the line that calls the function, e.g. ``"decode (data.py:9), called at model.py:61,"``."""
        return f"{self.where}, called at {self.line.called_at}," if self.line.called_at else self.where

    @property
    def doing(self) -> str:
        """The function that the line calls, e.g. ``" in json.loads"``; empty if the line itself takes the time."""
        return f" in {self.line.call}" if self.line.call else ""


def check_is_sampled(session: Session) -> None:
    """Raise Skip if the stack of the training thread was not sampled."""
    reason = session.missing.get("host_profile", "the stack of the training thread was not sampled")
    required(session.host_profile, reason)


def lines_of(session: Session, *phases: str) -> list[LineTime]:
    """Return the lines that take time in these phases (none for all), costliest first; empty without stack samples."""
    return _lines(session, lambda name, _: not phases or name in phases)


def is_line_of(line: HostLine, function: HotFunction) -> bool:
    """Return whether a line of the training process belongs to a function of the loader."""
    return site_of(line.file, 0) == site_of(function.file, 0) and line.function == function.name.rsplit(".", 1)[-1]


def sampler_lines(session: Session) -> list[LineTime]:
    """Return the lines that draw the indices of samples in the training process, costliest first.

    These run below ``__iter__``. Empty if the dataset or the loader may have an iterator of the user's there.
    """
    loaders = [one for one in session.settings.loaders if one.stage == "train"]
    if not loaders or any(one.is_iterable or not one.is_plain for one in loaders):
        return []
    return _lines(session, lambda name, line: name == "data_wait" and line.entry == "__iter__")


def whole_lines_of(session: Session, phases: Sequence[str], is_wanted: Callable[[HostLine], bool]) -> list[LineTime]:
    """Return the time of selected lines including the operators that they run, costliest first."""
    return _lines(session, lambda name, line: name in phases and is_wanted(line), with_operators=True)


def outer_lines_of(session: Session, phase: str) -> list[LineTime]:
    """Return the lines of hooks in a phase with all that they call, operators included, costliest first."""
    profile, steady = session.host_profile, session.steady
    found = profile.phases.get(phase) if profile is not None else None
    if found is None or steady is None:
        return []
    seconds = phase_s(steady, phase)
    lines = (line for line in found.outer_lines if line.n_samples >= LINE_MIN_SAMPLES)
    return [_line_time(line, phase, found, seconds, with_operators=True) for line in lines]


def whole_call_of(session: Session, time: LineTime) -> LineTime | None:
    """Return the time of the line around a line that takes much longer; None if none does."""
    profile, steady = session.host_profile, session.steady
    within = time.line.within if isinstance(time.line, InnerLine) else None
    if within is None or profile is None or steady is None:
        return None
    with_operators = not _is_computing(session, time.phase)
    return _line_time(within, time.phase, profile.phases[time.phase], phase_s(steady, time.phase), with_operators)


def line_calling(session: Session, path: str) -> HostLine | None:
    """Return the costliest line of forward whose text calls a submodule of the module; None if none was sampled."""
    call = re.compile(rf"\bself\.{re.escape(path)}\(")
    lines = whole_lines_of(session, ("forward",), lambda line: bool(call.search(line.code)))
    return lines[0].line if lines else None


def growing_line(session: Session, phase: str) -> HostLine | None:
    """Return the line that takes a growing part of a phase in the course of the run; None if none does for certain.

    The mean step of a line's samples is compared with that of the phase's other samples. Samples of one step depend on
    each other, so the errors are those of means of as many steps, spread evenly over the sampled ones.
    """
    profile = session.host_profile
    found = profile.phases.get(phase) if profile is not None else None
    if profile is None or found is None or found.mean_step is None:
        return None
    spread = (profile.last_step - profile.first_step) / math.sqrt(12)
    later = {}
    for line in found.lines:
        if line.mean_step is None or line.n_samples < LINE_MIN_SAMPLES or not line.share < 1:
            continue
        others = (found.mean_step - line.share * line.mean_step) / (1 - line.share)
        if line.mean_step - others > NORMAL_Z99 * spread * math.sqrt(
            1 / max(1, line.n_steps) + 1 / max(1, found.n_steps)
        ):
            later[line] = line.share * (line.mean_step - others)
    return max(later, key=lambda line: later[line], default=None)


def _lines(
    session: Session, is_wanted: Callable[[str, HostLine], bool], with_operators: bool = False
) -> list[LineTime]:
    profile, steady = session.host_profile, session.steady
    if profile is None or steady is None:
        return []
    found = [
        _line_time(line, name, phase, phase_s(steady, name), with_operators or not _is_computing(session, name))
        for name, phase in profile.phases.items()
        for line in phase.lines
        if line.n_samples >= LINE_MIN_SAMPLES and is_wanted(name, line)
    ]
    return sorted(found, key=lambda time: -time.seconds)


def _is_computing(session: Session, phase: str) -> bool:
    return phase in _COMPUTING or (phase == "other" and not session.run.has_trainer)


def is_metric(line: HostLine) -> bool:
    """Return whether a line spends its time in a metric of torchmetrics."""
    return line.call.startswith("torchmetrics.")


def is_logging(line: HostLine) -> bool:
    """Return whether a line spends its time in ``self.log`` or ``fabric.log``."""
    return line.call.endswith(("LightningModule.log", "LightningModule.log_dict", "Fabric.log", "Fabric.log_dict"))


def lines_computing_what_is_logged(session: Session) -> list[LineTime]:
    """Return the lines that call ``self.log`` and those that compute its values, outside logging and validation.

    The latter are lines within ``NEARBY_LINES`` of such a call in the same ``on_…`` hook of a batch; other methods,
    such as ``training_step``, compute more than what is logged.
    """
    logging = [time.line for time in lines_of(session) if time.phase != "validation" and is_logging(time.line)]
    places = {(line.file, line.line) for line in logging}
    hooks = [line for line in logging if line.entry.startswith("on_") and "epoch" not in line.entry]

    def computes(name: str, line: HostLine) -> bool:
        is_near = any(
            (line.file, line.entry) == (hook.file, hook.entry) and abs(line.line - hook.line) <= NEARBY_LINES
            for hook in hooks
        )
        return name not in ("logging", "validation") and (is_near or (line.file, line.line) in places)

    return _lines(session, computes, with_operators=True)


def records_stacks(session: Session, line: HostLine) -> bool:
    """Return whether a line calls torch's operators or modules while anomaly detection records the stack of each.

    Such a line spends its time outside operators in recording stacks, unless it makes tensors of Python's numbers.
    """
    is_on = session.settings.trainer.is_anomaly_detection_on
    is_torchs = line.call.startswith(("torch.", "nn.", "F.")) and line.call not in MAKING_TENSORS
    is_recorded = is_torchs or line.call == "forward"
    return line.call == "torch.format_stack" or bool(is_on and line.operator_fraction > 0 and is_recorded)


def host_s(session: Session, phase: str) -> float:
    """Return the seconds of a phase in the user's lines and the garbage collector, outside torch operators."""
    lines_s = sum(time.seconds for time in lines_of(session, phase) if not is_collecting(session, time.line))
    return lines_s + collecting_s(session, phase)


def computing_s(session: Session, steady: StageTimes, *names: str) -> float:
    """Return the seconds of these phases in which this rank computes.

    Excludes the user's own lines and the garbage collector, and for backward also the wait for other ranks, if known
    (unknown for strategies that communicate within forward and backward).
    """
    seconds = sum(max(0.0, phase_s(steady, name) - host_s(session, name)) for name in names)
    own = own_summary(session)
    if "backward" not in names or own is None or own.waiting_s is None:
        return seconds
    backward_s = phase_s(steady, "backward")
    own_s = own.parts_s.get("compute", 0.0) * steady.n_span_steps - phase_s(steady, "forward", "optimizer")
    return max(0.0, seconds - backward_s + min(backward_s, max(0.0, own_s)))


def cpu_computing_share(session: Session, *phases: str) -> float:
    """Return the share of the steady time in which operators of these phases run on a CPU; 0 on a device."""
    steady = session.steady
    return computing_s(session, steady, *phases) / steady.span_s if steady is not None and is_cpu_run(session) else 0.0


def slow_lines_of(session: Session) -> list[tuple[HostLine | None, float, float]]:
    """Return the lines that run in slow steps after three times the median step, costliest first.

    Each line comes with its share of that time and the lower end of the share's 95 % interval. A line of None means
    automatic garbage collection. Empty if no sample was taken in a slow step.
    """
    phases = session.host_profile.slow_steps.values() if session.host_profile is not None else ()
    found: list[tuple[HostLine | None, float, float]] = [
        (line, phase.share * line.share, phase.share * _wilson(line.share, phase.n_effective)[0])
        for phase in phases
        for line in phase.lines
    ]
    collecting = sum(phase.share * phase.gc_fraction for phase in phases)
    if collecting:  # timed by gc.callbacks, so the interval has no width
        found.append((None, collecting, collecting))
    return sorted(found, key=lambda item: -item[1])


def is_collecting(session: Session, line: HostLine) -> bool:
    """Return whether a line calls the garbage collector; its samples may show gc callbacks instead of the call."""
    asked = session.collections.asked if session.collections is not None else ()
    return line.call == COLLECT or any((one.file, one.line) == (line.file, line.line) for one in asked)


def collecting_s(session: Session, phase: str) -> float:
    """Return the seconds of a phase of the steady span in the garbage collector."""
    found, steady = session.collections, session.steady
    if found is None or steady is None or found.span_s <= 0:
        return 0.0
    asked_s = sum(each.total_s for each in found.asked if each.phase == phase)
    return (found.automatic_by_phase_s.get(phase, 0.0) + asked_s) * steady.span_s / found.span_s


def searched_for_tensors_s(session: Session, steady: StageTimes) -> float:
    """Return the seconds in which Lightning searches batches for tensors; 0 if other work in that phase is not known.

    On a CPU nothing is copied. The user's own lines, with their operators, and the garbage collector are left out.
    """
    if not is_cpu_run(session) or session.host_profile is None:
        return 0.0
    lines_s = sum(line.seconds for line in whole_lines_of(session, ("transfer",), lambda _: True))
    hooks_s = sum(time.total_s for time in steady.named if time.phase == "transfer" and time.kind != "loop")
    return max(0.0, phase_s(steady, "transfer") - max(lines_s, hooks_s) - collecting_s(session, "transfer"))


def left_with_raised_thresholds(found: Collections) -> float:
    """Return the part of the automatic collections' time that is not certain to go away with higher thresholds.

    ``n`` full collections at regular intervals show a span of at least ``n - 1`` intervals, so a single one in a short
    run shows nothing.
    """
    total_s = sum(found.automatic_by_phase_s.values())
    full_s = sum(each.automatic_s * (each.n - 1) / each.n for each in found.generations if each.generation == 2)
    _, middle, oldest = (*found.thresholds, 0, 0, 0)[:3]
    if not (middle and oldest and total_s > 0):
        return 1.0  # not a collector of three generations, or it did not run
    rarer = middle * oldest / (GC_RAISED_YOUNG * GC_RAISED_MIDDLE * GC_RAISED_FULL)
    return 1.0 - min(full_s, total_s) * max(0.0, 1.0 - rarer) / total_s


def _line_time(line: HostLine, name: str, phase: HostPhase, seconds: float, with_operators: bool) -> LineTime:
    share = line.share if with_operators else line.share * max(0.0, 1 - line.operator_fraction)
    low, high = _wilson(share, phase.n_effective)
    return LineTime(line, name, share * seconds, low * seconds, high * seconds, line.n_samples)


def _wilson(share: float, n: float) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share of ``n`` samples; one slightly over 1 counts as 1."""
    share = min(1.0, share)
    middle = (share + NORMAL_Z95**2 / (2 * n)) / (1 + NORMAL_Z95**2 / n)
    half = NORMAL_Z95 / (1 + NORMAL_Z95**2 / n) * math.sqrt(share * (1 - share) / n + NORMAL_Z95**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)
