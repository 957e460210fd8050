"""Lines of the user's code by host time and phase."""

from .base import Record


class HostLine(Record, frozen=True, kw_only=True):
    """A line of the user's code, with everything that it calls.

    Lines of one phase share no time: where one line calls another function of the user's, either the calling line is
    listed or the lines of that function are.

    Attributes:
        file: Relative to the working directory where it lies below it, else from its package on.
        entry: The outermost function of the user's on the stack, which Lightning or a library called, e.g.
            ``"training_step"``.
        call: The function that the line spends most of its time in, e.g. ``"json.loads"``; empty if that is its own
            code.
        operator_fraction: Part of the line's time in torch operators.
        per_step_s: Seconds per step; None before the steady state.
        span_share: Share of the steady time; None before the steady state.
        n_samples: Samples that found the line on the stack.
        code: The line itself; empty if its file cannot be read.
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
    code: str = ""


class HostPhase(Record, frozen=True, kw_only=True):
    """The samples of one phase.

    Attributes:
        n_effective: Samples of equal weight that would be as certain: a call that holds the interpreter lock delays
            the sampler, so one sample represents all of its time.
        operator_fraction: Part of the phase in torch operators.
        gc_fraction: Part of the phase in automatic garbage collections, which belong to no line.
        lines: Costliest first; at most 8.
    """

    n_samples: int
    n_effective: float
    share: float
    operator_fraction: float
    gc_fraction: float = 0.0
    lines: tuple[HostLine, ...] = ()


class HostProfile(Record, frozen=True, kw_only=True):
    """Samples of the training thread's stack.

    Attributes:
        sampled_s: Time that the samples represent.
        first_step: Steps finished at the first sample.
        last_step: Steps finished at the last one.
        phases: By phase name; only those that were seen.
        slow_steps: Samples taken once a step had lasted three times the median, by phase; empty if none was.
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
        automatic_s: Of these, in collections that Python started by itself.
    """

    generation: int
    n: int
    total_s: float
    automatic_s: float


class AskedCollection(Record, frozen=True, kw_only=True):
    """A line that calls ``gc.collect()``.

    Attributes:
        file: The user's, where a function of the user's called the library that collects.
        is_users: Whether it is a line of the user's.
    """

    file: str
    line: int
    function: str
    phase: str
    is_users: bool
    n: int
    total_s: float


class Collections(Record, frozen=True, kw_only=True):
    """Garbage collections since the end of the first step.

    Attributes:
        span_s: Seconds from then on.
        generations: Those that were collected.
        automatic_by_phase_s: Seconds in collections that Python started by itself, by phase.
        thresholds: ``gc.get_threshold()``.
        n_objects: Objects that the collector visits; None if they were not counted, as collections took no time.
        asked: Lines that call ``gc.collect()``, costliest first; at most 8.
    """

    span_s: float
    generations: tuple[Generation, ...]
    automatic_by_phase_s: dict[str, float]
    thresholds: tuple[int, ...]
    n_objects: int | None = None
    asked: tuple[AskedCollection, ...] = ()
