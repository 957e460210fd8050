"""Lines of the user's code by host time and phase."""

from .base import Record


class HostLine(Record, frozen=True, kw_only=True):
    """A line of the user's code, including all functions that it calls.

    Lines of one phase share no time: if a line calls another function of the user's, either the line is listed or the
    lines of that function.

    Attributes:
        file: Path relative to the working directory if it is below it, otherwise from its package on.
        entry: The outermost function of the user's on the stack, called by Lightning or a library, e.g.
            ``"training_step"``.
        call: The function in which the line spends most of its time, e.g. ``"json.loads"``; empty for its own code.
        operator_fraction: Fraction of the line's time in torch operators.
        per_step_s: Seconds per step; None before the steady state.
        span_share: Share of the steady time; None before the steady state.
        n_samples: Samples with the line on the stack.
        n_steps: At least so many steps have such samples; 0 in older sessions.
        mean_step: Mean number of finished steps at the samples, weighted by their time: larger for lines that take more
            time later. None in older sessions.
        code: Text of the line; empty if its file cannot be read.
        called_at: File and number of the user's line that calls the function, e.g. ``"model.py:61"``; empty in
            ``entry``, and if several lines call it.
    """

    file: str
    line: int
    function: str
    entry: str
    call: str
    share: float
    operator_fraction: float
    n_samples: int
    per_step_s: float | None = None
    span_share: float | None = None
    n_steps: int = 0
    mean_step: float | None = None
    code: str = ""
    called_at: str = ""


class InnerLine(HostLine, frozen=True, kw_only=True):
    """A line with one around it.

    Attributes:
        within: The outermost line on the stack of this one that adds the user's code and libraries, hardly any torch
            operators, and takes at least 1.5 times as long; None without such a line, and in older sessions.
    """

    within: HostLine | None = None


class HostPhase(Record, frozen=True, kw_only=True):
    """Stack samples of one phase.

    Attributes:
        n_effective: Effective sample size: samples have different weights, because a call that holds the interpreter
            lock delays the sampler, so that one sample represents all of its time.
        operator_fraction: Fraction of the phase in torch operators.
        gc_fraction: Fraction of the phase in automatic garbage collections, which belong to no line.
        n_steps: Steps with samples of the phase; 0 in older sessions.
        mean_step: Mean number of finished steps at all samples, as in ``HostLine``.
        lines: Costliest first; at most 8.
        outer_lines: The lines in ``entry``, including all functions of the user's that they call; at most 4.
    """

    n_samples: int
    n_effective: float
    share: float
    operator_fraction: float
    gc_fraction: float = 0.0
    n_steps: int = 0
    mean_step: float | None = None
    lines: tuple[InnerLine, ...] = ()
    outer_lines: tuple[HostLine, ...] = ()


class HostProfile(Record, frozen=True, kw_only=True):
    """Samples of the training thread's stack.

    Attributes:
        sampled_s: Time that the samples represent.
        first_step: Steps finished at the first sample.
        last_step: Steps finished at the last sample.
        phases: By phase name; only sampled phases.
        slow_steps: Samples taken after a step had lasted three times the median, by phase; empty without any.
    """

    n_samples: int
    sampled_s: float
    first_step: int
    last_step: int
    cost_s: float
    phases: dict[str, HostPhase]
    slow_steps: dict[str, HostPhase] = {}


class Generation(Record, frozen=True, kw_only=True):
    """Collections of one generation of Python's garbage collector.

    Attributes:
        generation: 0 to 2; 2 visits all objects.
        automatic_s: The part of ``total_s`` in collections that Python started itself.
    """

    generation: int
    n: int
    total_s: float
    automatic_s: float


class AskedCollection(Record, frozen=True, kw_only=True):
    """A line that calls ``gc.collect()``.

    Attributes:
        file: File of the user's code if it called the library that collects, otherwise of the library.
        is_users: Whether it is the user's code.
    """

    file: str
    line: int
    function: str
    phase: str
    is_users: bool
    n: int
    total_s: float


class Collections(Record, frozen=True, kw_only=True):
    """Garbage collections since the end of the first step, without profiled and sampled steps.

    Attributes:
        span_s: Seconds over which they are counted, without PerfDoctor's own.
        generations: Generations with a collection.
        automatic_by_phase_s: Seconds in collections that Python started itself, by phase.
        thresholds: ``gc.get_threshold()``.
        n_objects: Objects that the collector visits; None if collections took too little time to count them.
        asked: Lines that call ``gc.collect()``, costliest first; at most 8.
    """

    span_s: float
    generations: tuple[Generation, ...]
    automatic_by_phase_s: dict[str, float]
    thresholds: tuple[int, ...]
    n_objects: int | None = None
    asked: tuple[AskedCollection, ...] = ()
