"""Times of steps, epochs and stages."""

from .base import Record

PHASES: tuple[str, ...] = (
    "data_wait", "transfer", "forward", "backward", "optimizer", "scheduler", "callbacks", "logging", "validation",
    "checkpoint", "epoch_boundary", "startup", "other",
)  # fmt: skip
"""Exclusive phases: at each moment of a run the host is in exactly one, so they add up to the wall time.

``data_wait``: the host is blocked in the loader's ``next``. ``transfer``: batch hooks and the copy to the device.
``forward``, ``backward``, ``optimizer`` (step, clipping, unscaling, zero_grad): the host's time in them.
``scheduler``: learning-rate schedulers that Lightning steps. ``callbacks``: other callbacks' hooks, the module's own
hooks and the user's profiler. ``logging``: metric collection and loggers. ``validation``: the whole validation loop
inside fit.
``checkpoint``: saving, including saves that the end of validation triggers. ``epoch_boundary``: between the last step
of an epoch and the first of the next, without the phases above, plus the time by which the epoch's first fetch exceeds
a typical one. ``startup``: from ``setup`` to the first fetch. ``other``: the rest of the loop.
"""

_BETWEEN_STEPS = ("validation", "checkpoint", "epoch_boundary", "startup")

STEP_PHASES: tuple[str, ...] = tuple(name for name in PHASES if name not in _BETWEEN_STEPS)
"""The phases whose sum is the duration of a step; the rest happens between steps."""


class Distribution(Record, frozen=True, kw_only=True):
    """The spread of a repeated measurement; all five have the unit of the field that holds the record."""

    p50: float
    p95: float
    p99: float
    mean: float
    std: float


class PhaseTime(Record, frozen=True, kw_only=True):
    """One phase over a span of wall time.

    Attributes:
        total_s: Seconds of the span spent in the phase.
        share: ``total_s`` ÷ the span.
        p50_s: Median seconds per step; None for phases that happen between steps.
        p95_s: 95th percentile of seconds per step; None as for ``p50_s``.
        p10_s: 10th percentile of seconds per step; None as for ``p50_s``, and in older sessions.
        p01_s: 1st percentile of seconds per step, beyond steps with smaller batches (at most ``p10_s``); None as for
            ``p10_s``.
    """

    total_s: float
    share: float
    p50_s: float | None = None
    p95_s: float | None = None
    p10_s: float | None = None
    p01_s: float | None = None


class NamedTime(Record, frozen=True, kw_only=True):
    """Time attributed to one named piece of code that the loop called.

    Attributes:
        name: Class name of the callback, module or logger, e.g. ``"EarlyStopping"``.
        kind: ``"callback"``, ``"progress_bar"``, ``"checkpoint_callback"``, ``"module_hook"``, ``"logger"``,
            ``"profiler"`` (the user's, at the begin and end of actions) or ``"loop"`` (parts of Lightning's loop, e.g.
            ``zero_grad``, ``metrics``; ``anomaly_detection`` is the recording of stacks).
        hook: The hook or method, e.g. ``"on_train_batch_end"``.
        phase: The phase that the time is counted in.
        total_s: Seconds since the end of the first step, without the time of other names that it calls.
        share: The part of ``total_s`` outside of profiled and sampled steps ÷ all time outside of them since the end of
            the first step, without PerfDoctor's own.
    """

    name: str
    kind: str
    hook: str
    phase: str
    total_s: float
    share: float
    n_calls: int


class Block(Record, frozen=True, kw_only=True):
    """A run of successive steps, as one point of the timeline (the timeline has at most 512 of them).

    Attributes:
        first_step: Index of the first step of the block, counted from the start of the run.
        start_s: Seconds since the start of the run at which it began.
        phases: Mean seconds per step, by phase name.
    """

    first_step: int
    n_steps: int
    start_s: float
    step_s: float
    max_step_s: float
    phases: dict[str, float]


class SlowStep(Record, frozen=True, kw_only=True):
    """A step that took more than three times the median.

    Attributes:
        step: Index, counted from the start of the run.
        excess_s: Its duration minus the median.
        phase: The phase that grew most.
    """

    step: int
    duration_s: float
    excess_s: float
    phase: str


class Outliers(Record, frozen=True, kw_only=True):
    """Steps that took more than ``threshold_s`` (three times the median).

    Attributes:
        excess_s: Sum of their durations minus the median.
        share: ``excess_s`` ÷ the steady span.
        excess_by_phase_s: ``excess_s`` by the phase that grew most in the step.
    """

    n: int
    excess_s: float
    share: float
    threshold_s: float
    excess_by_phase_s: dict[str, float]
    worst: tuple[SlowStep, ...] = ()


class Fetch(Record, frozen=True, kw_only=True):
    """How batches arrived from the training loader.

    Attributes:
        n: Fetches measured, without the first of each epoch.
        wait_s: Host seconds blocked in one fetch.
        p90_over_p50: Ratio of the 90th percentile to the median; None if the median is 0.
        waiting_fraction: Share of fetches that blocked for more than a tenth of the median step.
        burst_period: Most frequent number of steps from one wait to the next; None if there were fewer than 8 waits.
        burst_fraction: Share of waits that follow the previous one at exactly ``burst_period``; None as for it.
        first_s: Seconds of the first fetch of each epoch after the warm-up, so without the run's first; at most 64.
        in_process_batch_s: Measured seconds to make one batch in a process without workers (median); None where
            it was not measured.
        in_process_basis: How ``in_process_batch_s`` was measured, or why it was not.
    """

    n: int
    wait_s: Distribution
    p90_over_p50: float | None
    waiting_fraction: float
    burst_period: int | None = None
    burst_fraction: float | None = None
    first_s: tuple[float, ...] = ()
    in_process_batch_s: float | None = None
    in_process_basis: str = "not measured"


class Epoch(Record, frozen=True, kw_only=True):
    """One training epoch.

    Attributes:
        index: ``trainer.current_epoch``.
        wall_s: From the end of the previous epoch's boundary (for the first, the start of the run) to the end of this
            epoch's boundary, without pauses in which PerfDoctor measured or reported. The phases add up to it.
        samples: Number of samples; None if the batch size is not known.
        tokens: Number of tokens, padding included; None if batches have none.
        step_p50_s: Median step; None for an epoch without a complete step.
        first_fetch_s: Seconds of its first fetch; None if it had none.
        boundary_s: Wall seconds from its last step to the first fetch of the next epoch; None before that fetch.
    """

    index: int
    n_steps: int
    wall_s: float
    phases: dict[str, float]
    samples: int | None = None
    tokens: int | None = None
    step_p50_s: float | None = None
    first_fetch_s: float | None = None
    boundary_s: float | None = None


class DeviceTimes(Record, frozen=True, kw_only=True):
    """Times of steady steps by the device's own clock (pooled events, resolved later): of some in a long run.

    Attributes:
        starved_s: Total seconds of these steps in which the device was idle while the host waited for data.
        starved_share: ``starved_s`` ÷ the wall time of the steps resolved.
        busy_s: Their total seconds from the first to the last device event of each step, without ``starved_s``.
        step_s: Device seconds from the start of one step's work to the start of the next.
        backend: ``"cuda"``, ``"mps"`` or ``"xpu"``.
        phases: Median device seconds per step from the begin of a phase to its end, idle time included, by phase:
            ``forward``, ``backward``, ``optimizer``. Empty if no sampled step was resolved, and outside fit.
        n_phases_sampled: Steps behind ``phases``, at most 64.
    """

    n: int
    starved_s: float
    starved_share: float
    busy_s: float
    step_s: Distribution
    backend: str
    phases: dict[str, float] = {}
    n_phases_sampled: int = 0


class StageTimes(Record, frozen=True, kw_only=True):
    """A stage's steps in the steady state: of fit, or of validation, testing, predicting.

    Attributes:
        n_steps: Steps (batches) measured: without warm-up, without the first of each epoch.
        n_first_steps: First steps of epochs, which span and phases include.
        n_warmup_steps: Steps left out at the start.
        span_s: Wall seconds from the first measured step to the end; the phases add up to it.
        step_s: Seconds per step (the sum of ``STEP_PHASES``).
        samples_per_s: Samples ÷ span; None if the batch size is not known.
        tokens_per_s: Tokens ÷ span, padding included; None if batches have none.
        phases: By phase name; only phases that occurred.
        named: Time by name, largest first, at most 32.
        fetch: How batches arrived; None if no fetch was timed.
        device: The device's own clock; None without one (see ``Session.missing``).
        outliers: None if there are fewer than 20 steps.
        gc_s: Seconds spent in Python's garbage collector during the span; None if not measured.
        own_s: Seconds of the span in PerfDoctor's own hooks, part of the phase ``callbacks``. Expected speedups exclude
            them.
        is_steady: Whether the two halves of the measured steps agree (median within 10 %); None with
            fewer than 20 steps.
        fixed_python_s: Seconds that a fixed piece of Python takes after steps (mean of the middle half), which show how
            fast the machine was. None with fewer than 16 measurements.
    """

    n_steps: int
    n_warmup_steps: int
    span_s: float
    step_s: Distribution
    samples_per_s: float | None
    phases: dict[str, PhaseTime]
    named: tuple[NamedTime, ...] = ()
    fetch: Fetch | None = None
    device: DeviceTimes | None = None
    outliers: Outliers | None = None
    timeline: tuple[Block, ...] = ()
    gc_s: float | None = None
    own_s: float = 0.0
    is_steady: bool | None = None
    tokens_per_s: float | None = None
    fixed_python_s: float | None = None
    n_first_steps: int = 0

    @property
    def n_span_steps(self) -> int:
        """Return the number of all steps in the span, by which totals are divided."""
        return self.n_steps + self.n_first_steps


class Padding(Record, frozen=True, kw_only=True):
    """Padding in training batches, counted in at most 64 that are evenly spaced over the run.

    Attributes:
        n_tokens: Tokens, padding included.
        n_padding: Padding tokens.
        trimmed_tokens: ``n_tokens`` if each batch were as long as its longest sequence.
        bucketed_tokens: ``n_tokens`` if, in addition, batches were made of sequences of similar length.
        basis: How padding was recognized: ``"attention_mask"``, ``"lengths"`` or e.g. ``"padding id 0"``.
    """

    n_batches: int
    n_tokens: int
    n_padding: int
    trimmed_tokens: int
    bucketed_tokens: int
    basis: str
