"""Analysis of a profiler trace. The field names are a contract: ``lightning-perf analyze --json`` prints them."""

from .base import Record
from .collectives import TraceRanks
from .finding import Finding, Verdict
from .trace_device import Communication, Copies, DeviceActivity, Idle, Kernels, Syncs

CATEGORIES: tuple[str, ...] = (
    "kernel", "communication", "memcpy", "memset", "runtime", "data_loading", "cpu_op", "other",
)  # fmt: skip
"""Exclusive categories of a step's time in order of priority: time hidden behind a kernel counts as the kernel's."""


class TraceStep(Record, frozen=True, kw_only=True):
    """One step of a trace; its categories add up to ``duration_s``.

    A step lasts from the end of the step before it (or its own start on the host, if later) to the end of its own work
    on the device (or on the host, if later): what the host enqueues in a step runs later on the device.

    Attributes:
        name: As the trace gives it, e.g. ``"ProfilerStep#5"``; ``"trace"`` for a trace without steps.
        device_busy_s: Seconds of the step in which any stream of the device worked; None without a device.
        busy_fraction: ``device_busy_s`` ÷ ``duration_s``; None without a device.
        start_s: Seconds since the start of the trace.
        host_s: Length of the step on the host alone; of its annotation on the device if the trace has no host side.
        host_busy_s: Seconds of the step on the host in which the device worked; None without a device.
        loader_s: Host seconds waiting for data, including time hidden behind device work.
        loader_exposed_s: The part of it in which the device was idle (on a CPU: all of it).
        n_operators: Operators called directly from Python.
        host_needed_s: Host seconds without waits for data or for the device.
    """

    name: str
    duration_s: float
    device_busy_s: float | None
    busy_fraction: float | None
    categories: dict[str, float]
    start_s: float = 0.0
    host_s: float | None = None
    host_busy_s: float | None = None
    loader_s: float = 0.0
    loader_exposed_s: float = 0.0
    n_kernels: int = 0
    n_operators: int = 0
    host_needed_s: float | None = None


class OperatorTime(Record, frozen=True, kw_only=True):
    """An operator: host time with and without its children, and the time of the kernels that it launched.

    Attributes:
        device_total_s: Kernels launched by it or by operators that it called.
        device_self_s: Kernels launched by it directly.
    """

    name: str
    calls: int
    host_total_s: float
    host_self_s: float
    device_total_s: float
    device_self_s: float = 0.0


class OperatorMemory(Record, frozen=True, kw_only=True):
    """Memory that an operator allocated in the analyzed span, freed or not.

    An allocation counts for the innermost operator of its thread that does more than allocate (``aten::empty`` and the
    like count for their caller).

    Attributes:
        name: Empty for allocations outside operators.
        n: Allocations, on the host and on devices.
    """

    name: str
    n: int
    device_bytes: int
    host_bytes: int


class LoaderWait(Record, frozen=True, kw_only=True):
    """Waits for the loader in the analyzed span. A median hides single long waits: compare it with total and maximum.

    Attributes:
        exposed_s: The part of ``total_s`` in which the device was idle (on a CPU: all of it).
        stalled_fraction: Fraction of fetches that took more than a tenth of the mean step (without steps: of the mean
            time between fetches).
    """

    total_s: float
    exposed_s: float
    n: int
    p50_s: float
    p95_s: float
    max_s: float
    stalled_fraction: float


class CallTime(Record, frozen=True, kw_only=True):
    """A runtime call by name."""

    name: str
    n: int
    total_s: float


class Allocator(Record, frozen=True, kw_only=True):
    """Calls of the driver that allocate or free memory, in the analyzed span.

    Attributes:
        exposed_s: Seconds in such calls in which the device was idle.
    """

    n: int
    total_s: float
    exposed_s: float
    calls: tuple[CallTime, ...] = ()


class Startup(Record, frozen=True, kw_only=True):
    """One-off costs (device context, library handles, loading of code) that are not part of a steady step.

    Attributes:
        total_s: Seconds, overlapping calls counted once.
        span_s: From the start of the trace to the end of the last such call.
    """

    total_s: float
    span_s: float
    calls: tuple[CallTime, ...] = ()


class PhaseWork(Record, frozen=True, kw_only=True):
    """A phase of training: ``data_loading``, ``forward``, ``backward``, ``optimizer`` or ``other``.

    Attributes:
        device_s: Seconds of the device work that it launched, summed over streams.
        n_operators: Operators called directly from Python during it; None in sessions of older versions.
    """

    name: str
    host_s: float
    device_s: float
    n_kernels: int
    n_operators: int | None = None


class MatrixShape(Record, frozen=True, kw_only=True):
    """Matrix multiplications or convolutions of one shape.

    Attributes:
        m: Rows of the product; None for convolutions.
        n: Columns of the product; None for convolutions.
        k: Dimension that is summed over; None for convolutions.
        is_aligned: Whether m, n and k suit the matrix units (multiples of 8 for 16-bit, 16 for 8-bit types, 4 for
            32-bit); None for convolutions.
    """

    operator: str
    shapes: str
    dtype: str
    calls: int
    host_s: float
    device_s: float
    m: int | None = None
    n: int | None = None
    k: int | None = None
    is_aligned: bool | None = None


class Convolutions(Record, frozen=True, kw_only=True):
    """Convolutions.

    Attributes:
        n_input_shapes: Different shapes of the first convolution's input; None without recorded shapes.
        bias_before_batch_norm_n: Convolutions with a bias directly before batch normalization; None without shapes.
        bias_s: Device seconds (on a CPU: host seconds) to add these biases in forward; None if unknown.
    """

    n: int
    n_input_shapes: int | None = None
    bias_before_batch_norm_n: int | None = None
    bias_s: float | None = None


class MaterialisedAttention(Record, frozen=True, kw_only=True):
    """Unfused attention: a product, a softmax and another product, with the score matrix written to memory.

    Attributes:
        host_s: Host seconds from the first to the last of the three operators, in forward and backward.
        share: Share of the device's time; on a CPU, of the host's time in operators.
        site: ``file:line`` of the user's code; empty without stacks.
        rows: Rows of one score matrix; None without recorded shapes.
        columns: Columns of it; None without recorded shapes.
    """

    n: int
    host_s: float
    device_s: float
    share: float
    site: str = ""
    function: str = ""
    rows: int | None = None
    columns: int | None = None


class CodeSite(Record, frozen=True, kw_only=True):
    """A function of the user's and the operators that it calls; only with recorded stacks.

    Attributes:
        site: ``file:line`` of the function.
        n_operators: Operators called directly from Python.
        host_s: Host seconds in these operators.
        device_s: Seconds of kernels that they launched.
        top_operator: The operator called most often.
        top_n: Calls of it.
        max_repeats: Most calls of one operator within one call of the function, e.g. in a Python loop.
    """

    site: str
    function: str
    n_operators: int
    host_s: float
    device_s: float
    top_operator: str
    top_n: int
    max_repeats: int


class LatePlace(Record, frozen=True, kw_only=True):
    """A place that launches work late, though not because of data, memory or an earlier wait for the device.

    Attributes:
        site: ``file:line`` of the user's code where stacks were recorded, else the operator or runtime call that
            launched; empty for the time after the last device event.
        total_s: Seconds in which the device was idle before it.
        between_s: The part of ``total_s`` in which the host was in no operator and no runtime call.
        function: The user's function; empty without stacks.
    """

    site: str
    n: int
    total_s: float
    between_s: float
    function: str = ""


class CriticalPath(Record, frozen=True, kw_only=True):
    """The critical path of the analyzed span, in exclusive seconds.

    Attributes:
        causes: Seconds by cause, which add up to ``span_s``. The device limits: ``compute``, ``communication`` (without
            a kernel at the same time), ``pageable_copy`` (and idle time after it), ``transfer`` (from pinned or unknown
            memory), ``device_to_host``, ``device_copy``. The device is idle: ``loader``, ``startup``, ``allocator``,
            ``sync`` (the host waited for the device and then launches late), ``blocked`` (the host is in a call that
            waits for the device), ``launch`` (it is in operators and other runtime calls), ``between`` (it is in
            neither), ``queue`` (the work was launched in time), ``edges`` (in a trace without steps: before the first
            and after the last device event, without ``startup``). ``sync_communication``: only collectives run, and the
            host waits for them instead of launching other work. ``hidden``: the device works, but the host limits. In a
            trace without device work: ``compute`` (operators outside of fetches), ``communication``, ``loader``,
            ``between``.
        kinds: Seconds of ``compute`` by kind of kernel.
        late: Where ``launch``, ``between`` and ``blocked`` were spent, most time first, at most 8.
        long_gaps_s: Part of ``launch`` and ``between`` in gaps with over a millisecond outside the device's
            runtime, which is longer than launching takes.
    """

    causes: dict[str, float] = {}
    kinds: dict[str, float] = {}
    late: tuple[LatePlace, ...] = ()
    long_gaps_s: float = 0.0


class WhatIf(Record, frozen=True, kw_only=True):
    """The predicted step time without one cause.

    Attributes:
        cause: ``loader``, ``sync``, ``pageable_copy``, ``transfer``, ``device_to_host``, ``allocator``,
            ``communication`` or ``launch``.
        step_s: The mean step (the span, if the trace has no steps).
        low_s: Lower bound of the new step: the larger of the times that device and host still need.
        high_s: Upper bound of the new step.
        claim_s: Seconds of the whole analyzed span that are exclusive to the cause.
    """

    cause: str
    step_s: float
    low_s: float
    high_s: float
    claim_s: float
    basis: str


class TraceRecord(Record, frozen=True, kw_only=True):
    """One trace of one rank.

    Attributes:
        source: File name, or ``"live"``.
        device_name: None if unknown, or without a device.
        steps: Empty for a trace without steps, which is analyzed as a whole.
        missing: Why a value is unknown.
        span_s: Seconds analyzed: all steps, or the whole trace. Shares refer to this span.
        era: Which profiler wrote it, by its category names: ``"kineto-2021"`` (torch 1.8 to 1.11),
            ``"kineto-2022"`` or ``"unknown"``. Traces carry no version of torch.
        whole: The whole trace as one step.
        has_stacks: Whether Python stacks were recorded.
        has_shapes: Whether input shapes were recorded.
        device: None if there was no work of a known device.
        n_operators: Operators called directly from Python, in the analyzed span.
        operator_mean_s: Mean host seconds of these operators; None without any.
        what_if: One prediction per cause in the trace.
        ranks: Comparison of the traces of several ranks of this run; only in the record of the first of them.
        critical_path: None if a device was not recorded, and in records of older versions.
        operator_memory: Most bytes first, at most 64; empty unless the profiler recorded memory.
    """

    source: str
    rank: int | None
    world_size: int | None
    device_name: str | None
    n_events: int
    n_kernels: int
    steps: tuple[TraceStep, ...]
    idle: Idle | None
    communication: Communication | None
    copies: Copies | None
    syncs: Syncs | None
    kernels: Kernels | None
    operators: tuple[OperatorTime, ...]
    findings: tuple[Finding, ...] = ()
    verdict: Verdict | None = None
    missing: dict[str, str] = {}
    span_s: float = 0.0
    whole: TraceStep | None = None
    era: str = "unknown"
    has_stacks: bool = False
    has_shapes: bool = False
    device: DeviceActivity | None = None
    loader: LoaderWait | None = None
    allocator: Allocator | None = None
    startup: Startup | None = None
    phases: tuple[PhaseWork, ...] = ()
    matrix_shapes: tuple[MatrixShape, ...] = ()
    convolutions: Convolutions | None = None
    attention: MaterialisedAttention | None = None
    code_sites: tuple[CodeSite, ...] = ()
    n_operators: int = 0
    operator_mean_s: float | None = None
    what_if: tuple[WhatIf, ...] = ()
    ranks: TraceRanks | None = None
    critical_path: CriticalPath | None = None
    operator_memory: tuple[OperatorMemory, ...] = ()

    @property
    def windows(self) -> tuple[TraceStep, ...]:
        """The steps, or the whole trace where it has none."""
        return self.steps or ((self.whole,) if self.whole is not None else ())
