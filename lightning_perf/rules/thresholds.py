"""The thresholds and other numeric constants of the rules, each with its unit, status and source.

Statuses: ``published`` (a document that anyone can open names the value), ``measured`` (a page of docs/benchmarks
shows it) and ``heuristic`` (chosen by us; the text says why). The documentation shows them as one table.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

_Number = TypeVar("_Number", int, float)


class Threshold(NamedTuple):
    """One row of the table.

    Attributes:
        value: The constant.
        unit: ``"share"`` is a fraction of the training time unless the text says otherwise.
        status: How the value is known.
        why: What it means, and why it has this value.
        source: A URL, or the path of a page in docs/; empty for a heuristic.
    """

    value: float
    unit: str
    status: Literal["published", "measured", "heuristic"]
    why: str
    source: str = ""


_rows: list[Threshold] = []


def _published(value: _Number, unit: str, why: str, source: str) -> _Number:
    _rows.append(Threshold(value, unit, "published", why, source))
    return value


def _measured(value: _Number, unit: str, why: str, page: str) -> _Number:
    _rows.append(Threshold(value, unit, "measured", why, page))
    return value


def _heuristic(value: _Number, unit: str, why: str) -> _Number:
    _rows.append(Threshold(value, unit, "heuristic", why))
    return value


def table() -> dict[str, Threshold]:
    """Return the constants by name, in the order of this file."""
    names = [name for name in globals() if name.isupper() and not name.startswith("_")]
    return dict(zip(names, _rows, strict=True))


_XPROF = "https://github.com/openxla/xprof/blob/master/xprof/convert/op_stats_to_input_pipeline_analysis.cc"
_TRACEML = "https://github.com/traceopt-ai/traceml/blob/main/src/traceml_ai/diagnostics/"
_TB_PROFILER = "https://github.com/pytorch/kineto/blob/main/tb_plugin/torch_tb_profiler/profiler/run_generator.py"
_SAGEMAKER = "https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-profiler-rules.html"
_PATTERNS = "https://github.com/pytorch/pytorch/blob/main/torch/profiler/_pattern_matcher.py"
_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities"
_TURING = "https://developer.nvidia.com/cuda-gpus"
_MATRICES = "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html"

# Severity and gain
HIGH_SHARE = _published(0.20, "share", "TraceML calls overhead of 20 % critical.", f"{_TRACEML}step_time/policy.py")
MEDIUM_SHARE = _published(0.10, "share", "TraceML warns of overhead from 10 % on.", f"{_TRACEML}step_time/policy.py")
LOW_SHARE = _heuristic(0.02, "share", "A few hundred steps cannot tell a smaller difference from noise.")
NARROW_RATIO = _heuristic(
    1.5, "ratio", "Most ÷ least saved time of an interval narrow enough that its middle counts as certain."
)
WIDE_RATIO = _heuristic(1.5, "ratio", "Above this ratio of its ends, a measured speedup is shown as an interval.")
MAX_RECOVERABLE_SHARE = _heuristic(0.98, "share", "No change removes a whole training: a gain is at most 50x.")
EXPLAINED_PART = _heuristic(0.5, "fraction", "A cause explains a symptom if it claims most of the symptom's time.")
MANY = _heuristic(10, "times", "The largest interval between runs of some work that a recommendation assumes.")

# Steps and samples
MIN_STEPS = _heuristic(5, "steps", "Fewer steps have no meaningful spread; PD901 asks for more.")
MIN_RELIABLE_STEPS = _heuristic(30, "steps", "The usual rule of thumb for a mean whose error is about normal.")
MIN_SPAN_S = _heuristic(1e-6, "s", "Shares of a shorter time are noise, or not finite.")
MIN_TELEMETRY_SAMPLES = _heuristic(3, "samples", "Fewer samples do not describe a run.")
MIN_CHANGE_POINTS = _heuristic(3, "samples", "On each side of a change: fewer have no meaningful median.")

# Kernels and operators
MATRIX_MIN_SHARE = _heuristic(0.40, "share of kernel time", "Below it, matrix multiplications do not decide the step.")
TENSOR_CORE_MAX_FRACTION = _heuristic(
    0.05,
    "fraction",
    "Of matrix kernels: torch-tb-profiler requires none; a few 16-bit kernels do not change the cause.",
)
ATTENTION_MIN_SHARE = _heuristic(0.15, "share of kernel time", "With less, fused attention changes a step little.")
TRACE_MIN_SHARE = _heuristic(0.05, "share", "Time of kernels or copies in a trace; as for waiting for data.")
TENSOR_CORE_MIN_DIMENSION = _heuristic(64, "elements", "Smaller products are memory-bound; padding would cost more.")
TENSOR_CORE_CAPABILITY = _published(7.0, "capability", "The first with Tensor Cores (Volta).", _CUDA)
TURING_CAPABILITY = _published(
    7.5, "capability", "Turing, including the GTX 16 series, which has no Tensor Cores.", _TURING
)
AMPERE_CAPABILITY = _published(8.0, "capability", "The first whose Tensor Cores have bf16 and TF32 (Ampere).", _CUDA)
HALF_ALIGNMENT = _published(8, "elements", "Alignment of 16-bit dimensions for Tensor Cores (16 bytes).", _MATRICES)
BYTE_ALIGNMENT = _published(16, "elements", "Alignment of 8-bit dimensions for Tensor Cores (16 bytes).", _MATRICES)
CONVOLUTION_MIN_SHARE = _heuristic(0.30, "share of kernel time", "Below it, convolutions do not decide the step.")
HALF_MIN_FRACTION = _heuristic(
    0.5, "fraction", "Of matrix kernels: layouts matter where most of them run in 16-bit types."
)
OPTIMIZER_MIN_SHARE = _heuristic(0.08, "share", "With less, even an optimizer that takes no time gains little.")
ELEMENTWISE_MIN_SHARE = _heuristic(0.40, "share of kernel time", "Below it, memory-bound kernels do not decide.")
KIND_SHOWN_SHARE = _heuristic(0.01, "share of kernel time", "Kinds of kernels with less are not listed.")
DOUBLE_MIN_FRACTION = _heuristic(0.01, "fraction of parameters", "A few scalars in float64 cost nothing.")
ZEROING_MIN_SHARE = _heuristic(0.01, "share", "Clearing gradients: with less, the change is not worth an edit.")
BUSY_MIN_SHARE = _heuristic(0.90, "share", "A device this busy can only become faster by less or faster arithmetic.")
THREADS_MIN_SHARE = _heuristic(0.50, "share", "Threads only speed up computing, so it must be most of the step.")
THREADS_MIN_STEP_S = _heuristic(5e-3, "s", "Operators of shorter steps are mostly too small to be split.")
DENORMAL_MIN_FRACTION = _heuristic(1 / 16, "fraction", "One denormal number in each vector of 16 on average.")
SCALER_MIN_STEPS = _heuristic(50, "steps", "Fewer optimizer steps do not give the rate of skipped ones.")
SCALER_MIN_SCALE = _heuristic(1.0, "factor", "Below it, the loss scale makes gradients smaller instead of larger.")
MIN_RECOMPILES = _heuristic(3, "count", "The first batch and the first of another size compile; a third is unexpected.")
RECOMPILES_AT_LIMIT = _published(
    7,
    "count",
    "torch gives a function up after 8 compilations (recompile_limit): the first and 7 more.",
    "https://github.com/pytorch/pytorch/blob/main/torch/_dynamo/config.py",
)

# Launches and tiny operators
LATE_MIN_SHARE = _published(
    0.30,
    "share",
    "TraceML calls a utilization of 70 % or less not healthy.",
    f"{_TRACEML}system/policy.py",
)
LATE_MAX_PER_KERNEL_S = _heuristic(1e-3, "s", "A launch takes some ten microseconds: longer gaps have another cause.")
SHORT_KERNEL_S = _heuristic(20e-6, "s", "Shorter than the host needs for a launch and the operator around it.")
TINY_MIN_OPERATORS = _heuristic(1_000, "per step", "With fewer tiny operators, their fixed cost is small.")
TINY_MAX_S = _heuristic(10e-6, "s", "Mean time of operators that consist of dispatch rather than work.")
TINY_MAX_WITH_STACKS_S = _heuristic(40e-6, "s", "Recording stacks makes each tiny operator several times as long.")
LOOP_MIN_REPEATS = _published(10, "count", "torch's pattern matcher reports a loop over indices from 10 on.", _PATTERNS)
SYNC_MIN_PER_STEP = _heuristic(0.5, "per step", "A line that waits in at least every other step is no exception.")
SYNC_MIN_SHARE = _heuristic(0.10, "share", "Idle time after a wait is an upper bound: another wait may follow.")
CAPPED_PART = _heuristic(0.5, "fraction", "If less of a cost remains outside the profiler, confidence is lower.")

# Batch size and memory
SMALL_BATCH_MAX_BUSY = _heuristic(
    0.60, "share", "SageMaker Debugger asks for readings below 70 %; a trace is exact, and more time is to gain below."
)
UNDERUSED_MAX_BUSY = _published(
    0.70, "share", "SageMaker Debugger, BatchSize: utilization (p95) below 70 %.", _SAGEMAKER
)
HEADROOM_MAX_FRACTION = _heuristic(0.5, "of device memory", "Below half, a batch twice as large fits.")
STARVED_MAX_PART = _heuristic(0.5, "of idle time", "If more is waiting for data, the loader is the cause.")
NEAR_CAPACITY_FRACTION = _published(
    0.92, "of device memory", "TraceML warns of memory pressure from 92 % on.", f"{_TRACEML}step_memory/policy.py"
)
FULL_FRACTION = _published(
    0.97, "of device memory", "TraceML calls memory pressure of 97 % critical.", f"{_TRACEML}step_memory/policy.py"
)
DOMINANT_PART = _heuristic(0.5, "of memory in use", "More than everything else together.")
FRAGMENTED_RATIO = _heuristic(1.5, "ratio", "Reserved ÷ allocated memory; TraceML warns at 2.0, when more is lost.")
SPLIT_MIN_FRACTION = _heuristic(0.25, "of reserved memory", "Free parts of used blocks: more than rounding explains.")
FRAGMENTED_MIN_BYTES = _heuristic(512 * 2**20, "bytes", "Less does not matter on a device that trains.")
LEAK_MIN_STEPS = _published(
    50, "steps", "TraceML diagnoses memory from 50 steps on; fewer are warm-up.", f"{_TRACEML}step_memory/policy.py"
)
UNNAMED_MIN_RISE_BYTES = _heuristic(
    64 * 2**20, "bytes", "Resident and heap memory rise for hundreds of steps while caches fill, without a leak."
)
HELD_MIN_TENSORS = _heuristic(16, "tensors", "With a graph, in one container; fewer may be a window of the last steps.")
HOST_MEMORY_FRACTION = _heuristic(0.9, "of the limit", "From here on, the kernel reclaims memory and then kills.")
SWAPPED_MIN_BYTES = _heuristic(64 * 2**20, "bytes", "A few pages that were swapped out once do no harm.")
DEFAULT_PREFETCH = _published(
    2,
    "batches per worker",
    "The DataLoader's default prefetch_factor.",
    "https://docs.pytorch.org/docs/stable/data.html",
)

# Host code
HOOK_MIN_SHARE = _heuristic(0.03, "share", "Logging and callbacks: users report such costs from a few percent on.")
USER_LINE_MIN_SHARE = _heuristic(0.05, "share of step time", "500 stack samples give a share of 5 % within 2 points.")
LINES_SHOWN = _heuristic(3, "lines", "More do not help to decide what to change.")
HOST_LINE_MIN_STEP_S = _heuristic(5e-3, "s", "Stack samples of shorter steps are off by up to 20 points.")
METRIC_EVERY_STEPS = _heuristic(10, "steps", "A metric of one batch in ten still shows how a training goes.")
LOG_EVERY_STEPS = _published(
    50,
    "steps",
    "Lightning's default log_every_n_steps.",
    "https://lightning.ai/docs/pytorch/stable/common/trainer.html",
)
LOG_FREQUENT_STEPS = _heuristic(10, "steps", "Below it, a run logs at nearly every step.")
LOG_MAX_STEPS = _heuristic(500, "steps", "A longer interval shows too little of a training.")
LOG_TARGET_SHARE = _heuristic(0.005, "share", "The recommended interval brings logging or the progress bar down to it.")
SLOW_CALL_S = _heuristic(1e-3, "s", "Writing a row to a local file takes up to some 0.5 ms; more is a disk or network.")
SLOW_FREQUENT_CALL_S = _heuristic(
    25e-3, "s", "Logging a hundred metrics takes several ms on a busy machine; only more is the logger's own."
)
LOGGER_ROWS_PER_EPOCH = _heuristic(2, "rows", "Written at the end of training and validation, whatever the interval.")
PROGRESS_LEFT_S = _heuristic(10e-6, "s", "Per step: the bar's hooks that count steps, at any refresh rate.")
PROGRESS_MAX_STEPS = _heuristic(100, "steps", "A bar that moves less often looks stuck.")
ANOMALY_LOW_FRACTION = _heuristic(0.05, "of forward and backward", "Large operators hardly feel anomaly detection.")
ANOMALY_HIGH_FRACTION = _heuristic(0.95, "of forward and backward", "Recording a stack outlasts a small operator.")
UNCLEARED_MIN_FRACTION = _heuristic(0.5, "of optimizer steps", "Clearing late now and then is not a forgotten call.")

# The loop around the step
VALIDATION_MIN_SHARE = _heuristic(
    0.25, "share", "A usual split validates on 10 to 20 % of the data without backward: 5 to 10 % of the time."
)
VALIDATION_TARGET_RATIO = _heuristic(0.10, "ratio", "Validation ÷ the rest, at the recommended interval.")
VALIDATION_MAX_EPOCHS = _heuristic(10, "epochs", "A longer interval hides overfitting.")
LOOP_MIN_SHARE = _heuristic(0.05, "share", "Checkpoints and epoch boundaries: with less, training hardly waits.")
CHECKPOINT_TARGET_RATIO = _heuristic(0.02, "ratio", "Saving ÷ the rest, at the recommended interval.")
RELOAD_MIN_PART = _heuristic(0.5, "of epoch boundaries", "Creating the loader again is the cause if it is most of it.")
IN_EPOCH_MAX_EPOCHS = _heuristic(0.5, "epochs per checkpoint", "Below it, checkpoints are saved within epochs.")
LONG_START_S = _heuristic(60.0, "s", "Anyone notices a minute.")
START_MIN_FIT_SHARE = _heuristic(0.20, "of the fit", "A shorter start is a small part of the wait.")
NOTICED_START_S = _heuristic(5.0, "s", "Nobody minds a shorter start, however short the fit is.")
TRY_OUT_START_S = _heuristic(10.0, "s", "Each debugging run pays it again.")
START_MIN_REST_SHARE = _heuristic(0.05, "of the start", "Less that is not attributed is not shown.")
GROWTH_MIN = _heuristic(0.10, "ratio - 1", "Halves of a run that differ by less count as the same state.")
GROWTH_MIN_WEIGHT = _heuristic(0.05, "of the step", "Smaller phases do not show whether all phases grew.")
GROWTH_ALIKE_PART = _heuristic(0.5, "of the step's growth", "Phases that grew by more than half of it grew alike.")
GROWTH_MIN_OWN = _heuristic(1.5, "ratio", "Less growth with a steady loop may be pressure on caches by other programs.")
COMMON_LINE_MIN_SHARE = _heuristic(0.3, "of slow steps' time", "A line with less is not what they have in common.")
CORELESS_PART = _heuristic(0.5, "of slow steps' time", "If more is waiting for a core, other programs are the cause.")

# Ranks
STRAGGLER_MIN_EXCESS = _published(
    0.10, "ratio - 1", "TraceML warns of a straggler from 10 % above the median on.", f"{_TRACEML}step_time/policy.py"
)
STRAGGLER_MIN_STEP_SHARE = _heuristic(0.05, "of the step", "Other programs make equal ranks differ by some percent.")
STRAGGLER_MIN_RARE_SHARE = _heuristic(0.20, "of the step", "A rank that is slow in some steps only must cost more.")
STRAGGLER_MIN_CORE_EXCESS = _heuristic(
    0.25, "ratio - 1", "Ranks with the same work on two cores of one virtual machine differed by up to 15 %."
)
STRAGGLER_USUAL_PART = _heuristic(
    0.5, "of the excess", "If the median step shows less, the rank is slow in some steps."
)
COMMUNICATION_MIN_SHARE = _published(
    0.10, "share", "torch-tb-profiler advises on communication above 10 % of the step.", _TB_PROFILER
)
UNUSED_MAX_FRACTION = _heuristic(
    0.20, "of backward", "Reports of searching unused parameters name 1 to 10 %, at most twice."
)
COLLECTIVES_MIN_SMALL = _heuristic(50, "per step", "DDP's buckets of 25 MiB need fewer for most models.")
COLLECTIVE_SMALL_S = _heuristic(100e-6, "s", "1 MiB takes at least this long at 10 GB/s.")
MIN_ITEMS_PER_STEP = _heuristic(1, "per step", "A broadcast by Lightning reads one number from the device.")
RANKS_SHOWN = _heuristic(4, "ranks", "More are counted.")

# The machine
HOT_C = _published(85.0, "°C", "TraceML calls a peak temperature of 85 °C high.", f"{_TRACEML}system/policy.py")
CLOCK_MIN_LOSS = _heuristic(0.10, "of the highest clock", "Boost clocks differ by less from one moment to the next.")
THROTTLED_MIN_FRACTION = _heuristic(0.05, "of the time", "Throttled for less, a training loses too little.")
POWER_CAPPED_MIN_FRACTION = _heuristic(0.20, "of samples", "Short peaks reach the power limit of any busy device.")
MIN_SWITCHES_PER_S = _heuristic(50.0, "per second", "An undisturbed thread is preempted a few times per second.")
THREAD_QUEUEING_MIN = _heuristic(0.10, "of the time", "Of the training thread, waiting for a core.")
FAR_NODE_MIN_FRACTION = _heuristic(0.50, "of the time", "On another NUMA node than the device for most of the time.")
FAR_NODE_MAX_GAIN = _heuristic(0.25, "of copies", "Copies from the far socket reach about three quarters of the rate.")
UTILIZATION_LOW_P95 = _published(0.70, "fraction", "SageMaker Debugger, LowGPUUtilization: p95 below 70 %.", _SAGEMAKER)
UTILIZATION_UNEVEN_P5 = _published(
    0.10, "fraction", "SageMaker Debugger, LowGPUUtilization: p5 below 10 % while p95 is above 70 %.", _SAGEMAKER
)
CPU_CLOCK_MIN_PART = _heuristic(0.50, "of the highest clock", "Few cores reach the highest clock at the same time.")
CHANGE_MIN = _heuristic(0.10, "ratio - 1", "Telemetry changes by less all the time.")
LOST_CORES_MIN = _heuristic(0.2, "of its cores", "A process that loses less may have had less to do.")
LOST_CORES_MAX_IDLE = _heuristic(0.5, "of lost cores", "If more of them stay idle, nobody took them.")
CHANGES_SHOWN = _heuristic(3, "figures", "More do not help to find the cause.")

# The measurement
OVERHEAD_MIN_STEP_SHARE = _heuristic(0.01, "of the step", "Code that runs once per long step finds cold caches.")
UNACCOUNTED_MAX_SHARE = _heuristic(
    0.05, "share", "Lightning's loop takes 1 to 3 % of a short step; more hides a cause."
)

# Copies
PAGEABLE_MIN_SHARE = _heuristic(
    0.03, "share", "Pinned copies take about half as long: with less there is little to gain."
)
NARROWING_PART = _heuristic(0.75, "of copied bytes", "float32 values that were bytes need a quarter of the traffic.")
OVERSIZED_MIN_RATIO = _heuristic(2.0, "ratio", "A smaller batch is not worth a change of dtype.")
OVERSIZED_MIN_BYTES = _heuristic(2**20, "bytes", "Smaller batches cost next to nothing to move: 0.1 ms at 10 GB/s.")
ACCUMULATING_FACTOR = _heuristic(2.0, "factor", "Adding to zeros reads and writes each gradient once more.")

# Loading data
WAIT_MIN_SHARE = _published(0.05, "share", "XProf calls a step input-bound from 5 % waiting for input on.", _XPROF)
WORKERS_SLACK = _heuristic(0.02, "ratio - 1", "A setting this close to the best is as good.")
STEP_MAX_SPREAD = _heuristic(0.5, "ratio - 1", "Steps that vary more change during the run.")
TRANSPORT_LOW_S = _heuristic(50e-6, "s", "Taking a batch of a few small tensors from a worker on an idle machine.")
TRANSPORT_HIGH_S = _heuristic(500e-6, "s", "The same on a busy machine: a batch made faster gains nothing by workers.")
WORKER_MIN_CORES = _heuristic(2.0, "cores per rank", "With fewer, a worker takes the core of the training process.")
COMPUTES_MIN_FRACTION = _heuristic(0.5, "of the time", "On a core for less, making samples waits.")
SHM_MAX_FRACTION = _heuristic(0.5, "of /dev/shm", "Batches in flight may fill half of it.")
SHM_SAFETY_FACTOR = _heuristic(2, "factor", "One set of batches is made while another is on its way.")
PREFETCH_MAX = _heuristic(8, "batches per worker", "More batches ahead mostly cost memory.")
PREFETCH_GROWTH = _heuristic(2, "factor", "Twice the batches ahead smooth a burst of the present length.")
CPU_BUSY_MIN = _heuristic(0.85, "of usable cores", "With more idle, processes do not queue for cores.")
LOADER_QUEUEING_MIN = _heuristic(0.20, "of the wait", "A process that queues this long shares its core.")
BLOCKED_MIN_FRACTION = _heuristic(0.60, "of the wait", "Neither running nor queueing: not bound by cores.")
IOWAIT_MIN_FRACTION = _published(0.50, "of CPU time", "SageMaker Debugger, IOBottleneck: above 50 %.", _SAGEMAKER)
DISK_BUSY_MIN = _heuristic(0.90, "of the time", "A disk with a request this often is near its limit.")
BLOCKED_MIN_CORES = _heuristic(0.5, "cores", "More CPU use than this while waiting shows threads of the dataset.")
RESTART_MIN_S = _heuristic(1.0, "s per epoch", "Users notice a second; see Lightning issue 10389.")
UNEVEN_MIN_RATIO = _heuristic(1.5, "p90 / p50", "Waits that differ by less are ordinary scatter.")
BURST_MIN_FRACTION = _heuristic(0.5, "of waits", "Distances between waits would spread evenly by chance.")
BURST_MIN_SHARE = _heuristic(1 / 3, "of making samples", "Usual samples need two thirds of the time or less.")
MIN_SLOW_SAMPLES = _heuristic(5, "samples", "Fewer may be the first one, or samples that the machine delayed.")
FUNCTION_MIN_SHARE = _heuristic(0.40, "of making a sample", "With less, no single function is worth speeding up.")
LINE_MIN_SHARE = _heuristic(0.50, "of the function", "Most of its time.")
LINE_MIN_PART = _heuristic(0.3, "of the claim", "A line with less is not where the time of a finding goes.")
LINE_MIN_SAMPLES = _heuristic(5, "stack samples", "Fewer say nothing about a line.")
NORMAL_Z95 = _published(
    1.96,
    "standard errors",
    "Half the width of a 95 % interval.",
    "https://en.wikipedia.org/wiki/97.5th_percentile_point",
)
COLLATE_MIN_SHARE = _heuristic(0.30, "of making a batch", "With less, a faster collate function gains little.")
TRANSPORT_MIN_SHARE = _heuristic(0.30, "of fetching a batch", "With less, moving batches is not what they cost.")
TRANSPORT_MIN_TENSORS = _heuristic(16, "tensors per batch", "Each is a piece of shared memory, sent in some 50 µs.")
TRANSPORT_MIN_OBJECTS = _heuristic(1000, "objects per batch", "Fewer are pickled in well under a millisecond.")
TRANSPORT_MIN_BYTES = _heuristic(4 * 2**20, "bytes per batch", "Takes as long to copy as a dozen tensors to send.")
SERIAL_MIN_PART = _heuristic(0.5, "of a sample", "If workers make this much in turn, more of them hardly help.")
SAME_LINE_MIN_SHARE = _heuristic(0.5, "of worker time", "Workers that hold one another up wait in the same line.")
LOOKUP_MAX_S = _heuristic(200e-6, "s", "Indexing a row takes some microseconds per field; more is other work.")
MEMORY_MIN_LASTING_S = _heuristic(3600.0, "s", "Trainings worth a diagnosis run for an hour or more.")
FIRST_BATCH_MIN_RATIO = _heuristic(10.0, "of a usual batch", "Filling the pipeline takes less.")
FIRST_BATCH_MIN_SHARE = _heuristic(0.01, "of the epoch", "Less cannot be measured.")
HOURS_WEIGHT = _heuristic(
    8.0, "factor", "Of effort against gain in the order of findings; grows less than the time, so large gains win."
)
MINUTES_WEIGHT = _heuristic(2.0, "factor", "The same for a change that takes minutes instead of one line.")
GC_RAISED_YOUNG = _heuristic(100, "factor", "The recommended threshold of generation 0 ÷ the present one.")
GC_RAISED_MIDDLE = _heuristic(50, "collections", "The recommended threshold of generation 1.")
GC_RAISED_FULL = _heuristic(100, "collections", "The recommended threshold of generation 2.")
