"""The thresholds and other numeric constants of the rules, each with its unit, status and source.

Statuses: ``published`` (a public document states the value) and ``heuristic`` (chosen by us; the text says why). The
documentation shows them in one table.
"""

from typing import Literal, NamedTuple, TypeVar

_Number = TypeVar("_Number", int, float)


class Threshold(NamedTuple):
    """One row of the table.

    Attributes:
        value: The constant.
        unit: Unit; ``"share"`` is a fraction of training time unless the text says otherwise.
        status: How the value was obtained.
        why: Meaning of the constant, and the reason for its value.
        source: A URL; empty for a heuristic.
    """

    value: float
    unit: str
    status: Literal["published", "heuristic"]
    why: str
    source: str = ""


_rows: list[Threshold] = []


def _published(value: _Number, unit: str, why: str, source: str) -> _Number:
    _rows.append(Threshold(value, unit, "published", why, source))
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
_NVML_TOPOLOGY = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceStructs.html"
_MATRICES = "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html"

# Severity and gain
HIGH_SHARE = _published(0.20, "share", "TraceML rates overhead of 20 % as critical.", f"{_TRACEML}step_time/policy.py")
MEDIUM_SHARE = _published(0.10, "share", "TraceML warns of overhead from 10 % on.", f"{_TRACEML}step_time/policy.py")
LOW_SHARE = _heuristic(0.02, "share", "With a few hundred steps, a smaller difference is within the noise.")
NARROW_RATIO = _heuristic(
    1.5, "ratio", "Most ÷ least saved time: the middle of an interval narrower than this counts as certain."
)
WIDE_RATIO = _heuristic(1.5, "ratio", "Above this ratio of its ends, a measured speedup is shown as an interval.")
MAX_RECOVERABLE_SHARE = _heuristic(0.98, "share", "Limits the expected speedup to 50x.")
WAITING_PART = _heuristic(0.5, "fraction", "With less idle time of the device, host time is mostly a wait for it.")
EXPLAINED_PART = _heuristic(0.5, "fraction", "A cause explains a symptom if it claims most of the symptom's time.")
SAME_WORK_FRACTION = _heuristic(
    0.5, "fraction", "If fast steps take less than this part of the usual time, they do not do the same work as others."
)
MANY = _heuristic(10, "times", "The largest factor by which recommendations make work less frequent.")

# Steps and samples
MIN_STEPS = _heuristic(5, "steps", "Fewer steps have no meaningful distribution; PD901 recommends more.")
MIN_RELIABLE_STEPS = _heuristic(30, "steps", "The usual rule of thumb for a mean whose error is about normal.")
MIN_SPAN_S = _heuristic(1e-6, "s", "Shares of a shorter time are noise, or not finite.")
MIN_TELEMETRY_SAMPLES = _heuristic(3, "samples", "Fewer samples do not describe a run.")
MIN_CHANGE_POINTS = _heuristic(3, "samples", "On each side of a change: fewer have no meaningful median.")

# Kernels and operators
MATRIX_MIN_SHARE = _heuristic(0.40, "share of kernel time", "Below it, matrix multiplication does not limit the step.")
TENSOR_CORE_MAX_FRACTION = _heuristic(
    0.05,
    "fraction",
    "Of matrix kernels: torch-tb-profiler requires 0; a few 16-bit kernels do not change the diagnosis.",
)
ATTENTION_MIN_SHARE = _heuristic(0.15, "share of kernel time", "With less, fused attention saves little.")
TRACE_MIN_SHARE = _heuristic(0.05, "share", "Kernels or copies in a trace; the same as for data wait.")
TENSOR_CORE_MIN_DIMENSION = _heuristic(
    64, "elements", "Smaller matrix multiplications are memory-bound; padding costs more."
)
TENSOR_CORE_CAPABILITY = _published(7.0, "capability", "The first with Tensor Cores (Volta).", _CUDA)
TURING_CAPABILITY = _published(
    7.5, "capability", "Turing, including the GTX 16 series, which has no Tensor Cores.", _TURING
)
AMPERE_CAPABILITY = _published(8.0, "capability", "The first with bf16 and TF32 in Tensor Cores (Ampere).", _CUDA)
HALF_ALIGNMENT = _published(8, "elements", "Alignment of 16-bit dimensions for Tensor Cores (16 bytes).", _MATRICES)
BYTE_ALIGNMENT = _published(16, "elements", "Alignment of 8-bit dimensions for Tensor Cores (16 bytes).", _MATRICES)
CONVOLUTION_MIN_SHARE = _heuristic(0.30, "share of kernel time", "Below it, convolutions do not limit the step.")
HALF_MIN_FRACTION = _heuristic(0.5, "fraction", "Of matrix kernels: memory layouts matter if most use 16-bit dtypes.")
OPTIMIZER_MIN_SHARE = _heuristic(0.08, "share", "With less, even an optimizer that takes no time would save little.")
ROWS_LOOKED_UP_MAX_FRACTION = _heuristic(
    0.25, "of the rows of embeddings", "A sparse update takes several times as long for each row as a dense one."
)
DROPPED_MIN_CLEARINGS = _heuristic(3, "clearings of gradients", "Once or twice may be the start of a schedule.")
DROPPED_MIN_FRACTION = _heuristic(
    0.5, "of clearings of gradients", "Gradients dropped now and then may be intended, as after an unstable step."
)
UNUSED_MIN_FRACTION = _heuristic(
    0.1, "of the trainable elements", "A smaller part, such as an unused output, takes little of a backward pass."
)
ELEMENTWISE_MIN_SHARE = _heuristic(
    0.40, "share of kernel time", "Below it, memory-bound kernels do not limit the step."
)
KIND_SHOWN_SHARE = _heuristic(0.01, "share of kernel time", "Kinds of kernels with a smaller share are not listed.")
DOUBLE_MIN_FRACTION = _heuristic(0.01, "fraction of parameters", "A few scalars in float64 cost nothing.")
ZEROING_MIN_SHARE = _heuristic(0.01, "share", "Clearing gradients: with less, the change is not worth an edit.")
BUSY_MIN_SHARE = _heuristic(0.90, "share", "If a device is this busy, only less or faster arithmetic saves time.")
THREADS_MIN_SHARE = _heuristic(0.50, "share", "Threads only speed up compute, so it must be most of the step.")
THREADS_MIN_STEP_S = _heuristic(5e-3, "s", "Operators of shorter steps are mostly too small to be split.")
DENORMAL_MIN_FRACTION = _heuristic(2**-9, "fraction", "Fewer cost time on some CPUs only; the replay measures it.")
DENORMAL_LIKELY_FRACTION = _heuristic(1 / 16, "fraction", "One in each vector of 16: reported also if not measured.")
SCALER_MIN_STEPS = _heuristic(50, "steps", "With fewer optimizer steps, the rate of skipped ones is unreliable.")
SCALER_MIN_SCALE = _heuristic(1.0, "factor", "Below 1, the loss scale makes gradients smaller instead of larger.")
MIN_RECOMPILES = _heuristic(3, "count", "Compiling for two batch sizes is normal; a third time is unexpected.")
RECOMPILES_AT_LIMIT = _published(
    7,
    "count",
    "torch stops compiling a function after 8 compilations (recompile_limit): the first and 7 more.",
    "https://github.com/pytorch/pytorch/blob/main/torch/_dynamo/config.py",
)

# Launches and tiny operators
LATE_MIN_SHARE = _published(
    0.30, "share", "TraceML rates a utilization of 70 % or less as unhealthy.", f"{_TRACEML}system/policy.py"
)
SHORT_KERNEL_S = _heuristic(20e-6, "s", "Shorter than the host's time for an operator and its launch.")
TINY_MIN_OPERATORS = _heuristic(1_000, "per step", "With fewer tiny operators, their overhead is small.")
TINY_MAX_S = _heuristic(10e-6, "s", "Operators with a smaller mean time consist mostly of dispatch.")
TINY_MAX_WITH_STACKS_S = _heuristic(40e-6, "s", "Recording stacks makes each tiny operator several times slower.")
LOOP_MIN_REPEATS = _published(10, "count", "torch's pattern matcher reports loops over 10 or more indices.", _PATTERNS)
SYNC_MIN_PER_STEP = _heuristic(0.5, "per step", "Lines that wait in fewer than every other step are exceptions.")
SYNC_MIN_SHARE = _heuristic(0.10, "share", "Idle time after a wait is only an upper bound, as another wait may follow.")

# Batch size and memory
SMALL_BATCH_MAX_BUSY = _heuristic(
    0.60, "share", "SageMaker Debugger uses sampled readings below 70 %; a trace is exact, so a lower bound is enough."
)
UNDERUSED_MAX_BUSY = _published(
    0.70, "share", "SageMaker Debugger, BatchSize: utilization (p95) below 70 %.", _SAGEMAKER
)
HEADROOM_MAX_FRACTION = _heuristic(0.5, "of device memory", "Below half, a batch twice as large fits.")
STARVED_MAX_PART = _heuristic(0.5, "of idle time", "If more of it is data wait, the loader is the cause.")
NEAR_CAPACITY_FRACTION = _published(
    0.92, "of device memory", "TraceML warns of memory pressure from 92 % on.", f"{_TRACEML}step_memory/policy.py"
)
FULL_FRACTION = _published(
    0.97, "of device memory", "TraceML rates memory pressure of 97 % as critical.", f"{_TRACEML}step_memory/policy.py"
)
DOMINANT_PART = _heuristic(0.5, "of memory in use", "More than all other memory together.")
FRAGMENTED_RATIO = _heuristic(1.5, "ratio", "Reserved ÷ allocated memory; TraceML warns later, at 2.0.")
SPLIT_MIN_FRACTION = _heuristic(0.25, "of reserved memory", "Free parts of used blocks; rounding explains less.")
FRAGMENTED_MIN_BYTES = _heuristic(512 * 2**20, "bytes", "Less does not matter on a training device.")
LEAK_MIN_STEPS = _published(
    50, "steps", "TraceML diagnoses memory from 50 steps on; fewer are warm-up.", f"{_TRACEML}step_memory/policy.py"
)
UNNAMED_MIN_RISE_BYTES = _heuristic(
    64 * 2**20, "bytes", "Resident and heap memory grow for hundreds of steps without a leak, while caches fill."
)
HELD_MIN_TENSORS = _heuristic(
    16, "tensors", "Tensors with a graph in one container; fewer may be a buffer of recent steps."
)
HOST_MEMORY_FRACTION = _heuristic(0.9, "of the limit", "Above it, the kernel reclaims memory and then kills processes.")
SWAPPED_MIN_BYTES = _heuristic(64 * 2**20, "bytes", "A few swapped pages are harmless.")
DEFAULT_PREFETCH = _published(
    2,
    "batches per worker",
    "The DataLoader's default prefetch_factor.",
    "https://docs.pytorch.org/docs/stable/data.html",
)

# Pairs of rows
PAIRS_MIN_SHARE = _heuristic(0.10, "share", "Nothing is replayed, so only a large part of a step is worth reporting.")

# Padding
NEAR_PERCENT = _heuristic(5, "percentage points", "On sequences this much longer, a replay gains a little less.")
PADDING_MIN_SHARE = _heuristic(0.20, "of the tokens", "With less padding, few operators become noticeably faster.")
IGNORED_TARGETS_MIN_SHARE = _heuristic(
    0.20, "of the targets", "With fewer ignored targets, few output layers become noticeably faster."
)

# Host code
HOOK_MIN_SHARE = _heuristic(0.03, "share", "Logging and callbacks: users report overhead from a few percent on.")
USER_LINE_MIN_SHARE = _heuristic(
    0.05, "share of step time", "With 500 stack samples, a share of 5 % is accurate to 2 percentage points."
)
NEARLY_ALL_PART = _heuristic(0.95, "of the elements", "The rest of the gradients takes next to no time.")
COSTLY_LINE_MIN_SHARE = _heuristic(0.30, "share", "Layers and losses take most of the time below it.")
LINES_SHOWN = _heuristic(3, "lines", "More lines do not help to decide what to change.")
HOST_LINE_MIN_STEP_S = _heuristic(5e-3, "s", "Stack samples of shorter steps are off by up to 20 percentage points.")
METRIC_EVERY_STEPS = _heuristic(10, "steps", "A metric of one batch in ten still shows the course of training.")
LOG_EVERY_STEPS = _published(
    50,
    "steps",
    "Lightning's default log_every_n_steps.",
    "https://lightning.ai/docs/pytorch/stable/common/trainer.html",
)
LOG_FREQUENT_STEPS = _heuristic(10, "steps", "Below it, a run logs in nearly every step.")
LOG_MAX_STEPS = _heuristic(500, "steps", "A longer interval shows too little of the course of training.")
LOG_TARGET_SHARE = _heuristic(0.005, "share", "Logging or the progress bar at the recommended interval.")
SLOW_CALL_S = _heuristic(1e-3, "s", "Writing a row to a local file takes up to 0.5 ms; more is a slow disk or network.")
SLOW_FREQUENT_CALL_S = _heuristic(
    25e-3, "s", "Logging a hundred metrics takes several ms on a busy machine, so only longer calls are slow."
)
LOGGER_ROWS_PER_EPOCH = _heuristic(
    2, "rows", "Written at the end of the training and validation epoch, at any interval."
)
PROGRESS_LEFT_S = _heuristic(10e-6, "s", "Time per step in hooks of the bar that count steps, at any refresh rate.")
PROGRESS_MAX_STEPS = _heuristic(100, "steps", "A bar that moves less often looks stuck.")
ANOMALY_HIGH_FRACTION = _heuristic(
    0.95, "of forward and backward", "Recording a stack takes longer than a small operator."
)
UNCLEARED_MIN_FRACTION = _heuristic(
    0.5, "of optimizer steps", "Gradients cleared late in a few steps are not a forgotten call."
)

# The loop around the step
FEW_BATCHES_PART = _heuristic(0.05, "of the batches", "So few may go through the model only once, e.g. the first one.")
VALIDATION_MIN_SHARE = _heuristic(
    0.25, "share", "Validation on 10 to 20 % of the data, without backward, normally takes 5 to 10 % of the time."
)
VALIDATION_TARGET_RATIO = _heuristic(0.10, "ratio", "Validation ÷ the rest, at the recommended interval.")
VALIDATION_MAX_EPOCHS = _heuristic(10, "epochs", "A longer interval hides overfitting.")
LOOP_MIN_SHARE = _heuristic(0.05, "share", "Checkpoints and epoch boundaries: with less, little can be saved.")
CHECKPOINT_TARGET_RATIO = _heuristic(0.02, "ratio", "Saving ÷ the rest, at the recommended interval.")
RELOAD_MIN_PART = _heuristic(0.5, "of epoch boundaries", "Creating the loader again takes most of their time.")
PROFILED_MIN_STEPS = _heuristic(1_000, "steps", "A longer run was probably not started for a profile.")
IN_EPOCH_MAX_EPOCHS = _heuristic(0.5, "epochs per checkpoint", "Below it, checkpoints are saved within epochs.")
LONG_START_S = _heuristic(60.0, "s", "Users notice a minute.")
START_MIN_FIT_SHARE = _heuristic(0.20, "of the fit", "A shorter start is a small part of the run.")
NOTICED_START_S = _heuristic(5.0, "s", "A shorter start is acceptable, however short the fit is.")
TRY_OUT_START_S = _heuristic(10.0, "s", "A longer start slows down debugging, as each run repeats it.")
START_MIN_REST_SHARE = _heuristic(0.05, "of the start", "A smaller unattributed part is not shown.")
GROWTH_MIN = _heuristic(0.10, "ratio - 1", "Halves of a run that differ by less count as the same state.")
EVEN_PART = _heuristic(
    0.25, "of a change", "A tenth of the steps that differ by the change make a standard deviation of 0.3 of it."
)
GROWTH_MIN_WEIGHT = _heuristic(0.05, "of the step", "Smaller phases are ignored when checking whether all phases grew.")
GROWTH_ALIKE_PART = _heuristic(
    0.5, "of the step's growth", "Phases that grew by more than half as much as the step count as growing alike."
)
GROWTH_MIN_OWN = _heuristic(
    1.5, "ratio", "Less growth while the loop is steady may be cache pressure by other programs."
)
COMMON_LINE_MIN_SHARE = _heuristic(0.3, "of slow steps' time", "A line with a smaller share is not their common cause.")
OUTLIER_MIN_OWN_PART = _heuristic(
    0.5, "of slow steps' time", "If less remains after waiting for a core, other programs are the cause."
)

# Ranks
STRAGGLER_MIN_EXCESS = _published(
    0.10, "ratio - 1", "TraceML warns of a straggler from 10 % above the median on.", f"{_TRACEML}step_time/policy.py"
)
STRAGGLER_MIN_STEP_SHARE = _heuristic(0.05, "of the step", "Other programs make equal ranks differ by a few percent.")
STRAGGLER_MIN_RARE_SHARE = _heuristic(0.20, "of the step", "A higher bound for ranks that are slow in some steps only.")
STRAGGLER_MIN_CORE_EXCESS = _heuristic(
    0.25, "ratio - 1", "Ranks with equal work on two cores of one virtual machine differed by up to 15 %."
)
STRAGGLER_USUAL_PART = _heuristic(
    0.5, "of the excess", "If the median step shows less, the rank is slow in some steps."
)
COMMUNICATION_MIN_SHARE = _published(
    0.10, "share", "torch-tb-profiler advises on communication above 10 % of the step.", _TB_PROFILER
)
UNUSED_MAX_FRACTION = _heuristic(
    0.20, "of backward", "Users report 1 to 10 % for the search for unused parameters; twice that as an upper bound."
)
COLLECTIVES_MIN_SMALL = _heuristic(50, "per step", "With DDP's buckets of 25 MiB, most models need fewer.")
COLLECTIVE_SMALL_S = _heuristic(100e-6, "s", "1 MiB takes at least this long at 10 GB/s.")
MIN_ITEMS_PER_STEP = _heuristic(1, "per step", "A broadcast by Lightning reads one number from the device.")
RANKS_SHOWN = _heuristic(4, "ranks", "Further ranks are given as a number.")

# The machine
HOT_C = _published(85.0, "°C", "TraceML rates a peak temperature of 85 °C as high.", f"{_TRACEML}system/policy.py")
CLOCK_MIN_LOSS = _heuristic(0.10, "of the highest clock", "Boost clocks normally vary by less.")
THROTTLED_MIN_FRACTION = _heuristic(0.05, "of the time", "Less throttling costs too little time.")
POWER_CAPPED_MIN_FRACTION = _heuristic(0.20, "of samples", "Any busy device reaches its power limit in short peaks.")
MIN_SWITCHES_PER_S = _heuristic(50.0, "per second", "An undisturbed thread is preempted a few times per second.")
THREAD_QUEUEING_MIN = _heuristic(0.10, "of the time", "A thread with a core of its own queues for less time.")
FAR_NODE_MIN_FRACTION = _heuristic(0.50, "of the time", "With less, the thread mostly runs on the device's node.")
FAR_NODE_MAX_GAIN = _heuristic(
    0.25, "of copies", "Copies from the other socket reach about three quarters of the rate."
)
FAR_LEVEL = _published(
    50, "level", "NVML_TOPOLOGY_SYSTEM: the path between two devices crosses NUMA nodes.", _NVML_TOPOLOGY
)
UTILIZATION_LOW_P95 = _published(0.70, "fraction", "SageMaker Debugger, LowGPUUtilization: p95 below 70 %.", _SAGEMAKER)
UTILIZATION_UNEVEN_P5 = _published(
    0.10, "fraction", "SageMaker Debugger, LowGPUUtilization: p5 below 10 % while p95 is above 70 %.", _SAGEMAKER
)
CPU_CLOCK_MIN_PART = _heuristic(
    0.50, "of the highest clock", "Only a few cores reach the highest clock at the same time."
)
CHANGE_MIN = _heuristic(0.10, "ratio - 1", "Telemetry normally varies by less.")
LOST_CORES_MIN = _heuristic(0.2, "of its cores", "A process that loses less may have had less work.")
LOST_CORES_MAX_IDLE = _heuristic(0.5, "of lost cores", "If more of them are idle, no other program took them.")
CHANGES_SHOWN = _heuristic(3, "metrics", "More metrics do not help to find the cause.")

# The measurement
OVERHEAD_MIN_STEP_SHARE = _heuristic(
    0.01, "of the step", "In long steps, hooks run with cold caches and exceed the budget by little."
)
UNACCOUNTED_MAX_SHARE = _heuristic(
    0.05, "share", "Lightning's loop takes 1 to 3 % of a short step; more may hide a cause."
)

# Copies
PAGEABLE_MIN_SHARE = _heuristic(
    0.03, "share", "Pinned copies take about half as long, so with less there is little to gain."
)
NARROWING_PART = _heuristic(0.75, "of copied bytes", "float32 values that fit one byte need a quarter of the traffic.")
OVERSIZED_MIN_RATIO = _heuristic(2.0, "ratio", "A smaller saving is not worth a change of dtype.")
OVERSIZED_MIN_BYTES = _heuristic(2**20, "bytes", "Smaller batches take less than 0.1 ms to move at 10 GB/s.")
ACCUMULATING_FACTOR = _heuristic(
    4.0, "factor", "Zeroing writes each gradient once; adding to it then reads two tensors and writes one."
)

# Loading data
WAIT_MIN_SHARE = _published(0.05, "share", "XProf rates a step as input-bound from 5 % data wait on.", _XPROF)
WORKERS_SLACK = _heuristic(0.02, "ratio - 1", "A setting this close to the best counts as equally good.")
STEP_MAX_SPREAD = _heuristic(
    0.5, "ratio - 1", "Upper limit of the variation: steps that vary more change during the run."
)
TRANSPORT_LOW_S = _heuristic(50e-6, "s", "Receiving a batch of a few small tensors from a worker on an idle machine.")
TRANSPORT_HIGH_S = _heuristic(500e-6, "s", "Such a batch on a busy machine; cheaper ones gain nothing from workers.")
WORKER_MIN_CORES = _heuristic(2.0, "cores per rank", "With fewer, a worker uses the core of the training process.")
COMPUTES_MIN_FRACTION = _heuristic(0.5, "of the time", "Below it, making samples counts as waiting.")
SHM_MAX_FRACTION = _heuristic(0.5, "of /dev/shm", "Prefetched batches may fill half of it.")
SHM_SAFETY_FACTOR = _heuristic(2, "factor", "One set of batches is made while another is being transferred.")
SHM_GIB = _heuristic(8, "GiB", "Recommended at least, once shared memory ran out: most batches fit several times.")
PREFETCH_MAX = _heuristic(8, "batches per worker", "More prefetched batches mostly cost memory.")
CPU_BUSY_MIN = _heuristic(0.85, "of usable cores", "Below it, enough cores are idle that processes do not queue.")
LOADER_QUEUEING_MIN = _heuristic(0.20, "of the wait", "A process that queues this long shares its core with others.")
BLOCKED_MIN_FRACTION = _heuristic(0.60, "of the wait", "Neither running nor queueing, so not limited by cores.")
IOWAIT_MIN_FRACTION = _published(0.50, "of CPU time", "SageMaker Debugger, IOBottleneck: above 50 %.", _SAGEMAKER)
DISK_BUSY_MIN = _heuristic(0.90, "of the time", "A disk that is busy this often is near its limit.")
BLOCKED_MIN_CORES = _heuristic(
    0.5, "cores", "More CPU use than this during data wait means that the dataset uses threads."
)
RESTART_MIN_S = _heuristic(1.0, "s per epoch", "Users notice a second; see Lightning issue 10389.")
UNEVEN_MIN_RATIO = _heuristic(1.5, "p90 / p50", "Waits normally vary by less.")
BURST_MIN_FRACTION = _heuristic(0.5, "of waits", "By chance, the distances between waits would be evenly distributed.")
BURST_MIN_SHARE = _heuristic(1 / 3, "of making samples", "Samples of even cost would save a third of the time or more.")
MIN_SLOW_SAMPLES = _heuristic(5, "samples", "Fewer may be the first sample, or samples delayed by the machine.")
FUNCTION_MIN_SHARE = _heuristic(0.40, "of making a sample", "With less, no single function is worth speeding up.")
LINE_MIN_SHARE = _heuristic(0.50, "of the function", "The line takes most of the function's time.")
LINE_MIN_PART = _heuristic(0.3, "of the claim", "A line with a smaller share does not explain the finding.")
NEARBY_LINES = _heuristic(10, "lines", "In a hook that logs, lines this near compute what is logged.")
LINE_MIN_SAMPLES = _heuristic(5, "stack samples", "With fewer, the share of a line is unreliable.")
NORMAL_Z95 = _published(
    1.96,
    "standard errors",
    "Half the width of a 95 % interval.",
    "https://en.wikipedia.org/wiki/97.5th_percentile_point",
)
NORMAL_Z99 = _published(
    2.33,
    "standard errors",
    "Exceeded by chance in 1 % of cases, on one side.",
    "https://en.wikipedia.org/wiki/Normal_distribution#Quantile_function",
)
COLLATE_MIN_SHARE = _heuristic(0.30, "of making a batch", "With less, a faster collate function gains little.")
KEPT_MIN_EPOCHS = _heuristic(3, "epochs", "The first loads the items; with one more, half of the run gains nothing.")
KEPT_MAX_MEMORY = _heuristic(0.25, "of the host's memory", "Loader and model need the rest.")
KEPT_MIN_COMPARED = _heuristic(
    32, "items", "Of a dataset that changes one item in ten, 32 items are all the same in 3 % of cases."
)
TRANSPORT_MIN_SHARE = _heuristic(0.30, "of fetching a batch", "With less, other costs of a batch dominate.")
TRANSPORT_MIN_TENSORS = _heuristic(16, "tensors per batch", "Each is a shared-memory segment, sent in about 50 µs.")
TRANSPORT_MIN_OBJECTS = _heuristic(1000, "objects per batch", "Fewer objects are pickled in well under a millisecond.")
TRANSPORT_MIN_BYTES = _heuristic(4 * 2**20, "bytes per batch", "Copying this takes as long as sending a dozen tensors.")
SERIAL_MIN_PART = _heuristic(0.5, "of a sample", "If this much is serialized, more workers hardly help.")
SAME_LINE_MIN_SHARE = _heuristic(0.5, "of worker time", "Workers that block one another wait in the same line.")
LOOKUP_MAX_S = _heuristic(200e-6, "s", "Indexing a row takes a few microseconds per field; more is other work.")
MEMORY_MIN_LASTING_S = _heuristic(3600.0, "s", "A run of an hour or more would run out of memory.")
FIRST_BATCH_MIN_RATIO = _heuristic(10.0, "of a typical batch", "Filling the prefetch queue takes less.")
FIRST_BATCH_MIN_SHARE = _heuristic(0.01, "of the epoch", "A smaller share is within the noise.")
HOURS_WEIGHT = _heuristic(
    8.0, "factor", "Weight of effort in the ranking of findings; less than the ratio of times, so large gains win."
)
MINUTES_WEIGHT = _heuristic(2.0, "factor", "Weight of a change that takes minutes; one line has 1.")
GC_RAISED_YOUNG = _heuristic(100, "factor", "The recommended threshold of generation 0 ÷ the present one.")
GC_RAISED_MIDDLE = _heuristic(50, "collections", "The recommended threshold of generation 1.")
GC_RAISED_FULL = _heuristic(100, "collections", "The recommended threshold of generation 2.")
GC_OWN_OBJECTS = _heuristic(31_000, "objects", "What PerfDoctor adds to those that a full collection visits.")
HANG_MIN_STEPS = _heuristic(20.0, "median steps", "A shorter pause, which ended, is a slow step (PD606).")
HANG_BUSY_MIN = _heuristic(0.5, "of a core", "A thread that waits for a lock or a socket uses none.")
