"""Work of the host in a step: operators that make it wait, loops over tensors, compilation, loss scaling."""

from typing import Literal

from .base import Record

Owner = Literal["user", "lightning", "other"]


class SyncCall(Record, frozen=True, kw_only=True):
    """One line that needs a result on the host: with a device, the host waits for it there.

    Attributes:
        operator: The operation, as written in code: ``"item"``, ``"tolist"``, ``"bool(tensor)"``, ``"print(tensor)"``,
            ``"cpu"``, ``"numpy"``, ``"nonzero"``, ``"boolean mask"``; otherwise the operator's name.
        file: The innermost file of the user's code, or of Lightning if no code of the user's was running. Empty if no
            Python was running (in a device's backward pass).
        per_step: Calls per sampled step.
        cost_s: Host seconds per step in these operators; None if only their number is known. On a CPU, this is the work
            of the operators, since nothing waits.
        owner: Owner of the line: the user, Lightning (progress bar, clipping, its loggers), or another library.
        phase: Phase of the step, one of ``PHASES``.
        code: Text of the line; empty if its file cannot be read.
        source: How it was found: ``"operator"``, or ``"device"`` for a warning of the device.
    """

    operator: str
    file: str
    line: int
    function: str
    per_step: float
    cost_s: float | None = None
    owner: Owner = "user"
    phase: str = "other"
    code: str = ""
    source: Literal["operator", "device"] = "operator"


class TensorLoop(Record, frozen=True, kw_only=True):
    """A Python loop over the elements or rows of a tensor.

    Attributes:
        file: File of the user's code.
        line: The line that takes the elements, or that calls the loop's operators.
        repeats: Most calls of ``operator`` from this line within one call of the function.
        operators_per_step: Operators per step that its lines call.
        cost_s: Seconds per step between the function's first and last operator, in the sampled steps; without
            the known cost of sampling.
        share: ``cost_s`` ÷ the duration of the sampled step, corrected in the same way.
        first_line: First line of the function; 0 if unknown.
        last_line: Last line of the function; 0 if unknown.
        lines: First and last line of the loop; None if unknown.
        phase: Phase of the step, one of ``PHASES``.
        iterations_per_step: Iterations of all calls of the function; None in older sessions.
        is_recurrence: Whether an iteration computes with a result of the one before, and does not only add to it; None
            in older sessions.
    """

    file: str
    line: int
    function: str
    operator: str
    repeats: int
    operators_per_step: float
    cost_s: float
    share: float
    code: str = ""
    first_line: int = 0
    last_line: int = 0
    lines: tuple[int, int] | None = None
    phase: str = "forward"
    is_recurrence: bool | None = None
    iterations_per_step: float | None = None


class AttentionCall(Record, frozen=True, kw_only=True):
    """Unfused attention: a product, a softmax and another product, with the score matrix written to memory.

    Attributes:
        file: File of the user's code; empty if none was running.
        rows: Rows of one score matrix.
        columns: Columns of it.
        cost_s: Host seconds per step in the three operators, forward and backward; None on a device.
        share: ``cost_s`` ÷ the duration of the sampled step; None on a device.
        via: torch's function that computes it, e.g. ``"multi_head_attention_forward"``; empty for the user's own code.
        fallback: Why ``scaled_dot_product_attention`` has no fused kernel for it: ``"dropout"`` or ``"inputs"``;
            empty if that function is not called.
    """

    file: str
    line: int
    function: str
    per_step: float
    rows: int
    columns: int
    cost_s: float | None = None
    share: float | None = None
    via: str = ""
    fallback: str = ""
    code: str = ""


class SyncCalls(Record, frozen=True, kw_only=True):
    """Operator calls of a few sampled steps.

    Attributes:
        step_s: Mean duration of these steps, without the known cost of sampling.
        device: Kind of the device: ``"cpu"``, ``"cuda"`` …
        calls: Lines that make the host wait, most frequent first; at most 32.
        loops: Python loops over tensors, costliest first; at most 8.
        attentions: Unfused attention; at most 8.
        operators_per_step: Operators per step below autograd, including backward.
        unseen: What sampling does not cover, and why.
    """

    n_steps: int
    step_s: float
    device: str = "cpu"
    calls: tuple[SyncCall, ...] = ()
    loops: tuple[TensorLoop, ...] = ()
    attentions: tuple[AttentionCall, ...] = ()
    operators_per_step: float = 0.0
    unseen: dict[str, str] = {}


class Recompile(Record, frozen=True, kw_only=True):
    """A function that was compiled more than once.

    Attributes:
        line: Its first line.
        n: Recompilations, without the first compilation.
        n_after_warmup: Recompilations after the run's first steps.
        reason: The guard that failed last; empty if unknown.
        compile_s: Seconds in all of them; None if unknown.
    """

    function: str
    file: str
    line: int
    n: int
    n_after_warmup: int = 0
    reason: str = ""
    compile_s: float | None = None


class GraphBreak(Record, frozen=True, kw_only=True):
    """A place where a compiled region had to end.

    Attributes:
        reason: torch's explanation, shortened.
        file: File of the user's code; empty if unknown.
        n: How often it occurred during compilation. Afterwards, it occurs in each step.
    """

    reason: str
    file: str
    line: int
    function: str = ""
    n: int = 1
    code: str = ""


class CompilerWatch(Record, frozen=True, kw_only=True):
    """What ``torch.compile`` did during the run.

    Attributes:
        n_compiled_steps: Steps with a compilation, which are excluded from statistics.
        n_after_warmup: Compilations after the run's first steps.
        recompiles: Most frequent first; at most 16.
        recompile_limit: Compilations of a function after which torch runs it uncompiled; None if unknown.
        graph_breaks: Most frequent first; at most 16.
        missing: Why a value is missing.
    """

    n_compiles: int
    compile_s: float
    n_compiled_steps: int = 0
    n_after_warmup: int = 0
    compile_after_warmup_s: float = 0.0
    n_functions: int = 0
    recompiles: tuple[Recompile, ...] = ()
    recompile_limit: int | None = None
    graph_breaks: tuple[GraphBreak, ...] = ()
    missing: dict[str, str] = {}


class LossScaler(Record, frozen=True, kw_only=True):
    """The loss scaler of fp16 training.

    Attributes:
        scale: The latest known scale.
        first_scale: The first known scale.
        n_steps: Optimizer steps, skipped ones included, after the first ``n_warmup_steps``.
        skips: Skipped steps among them, because gradients were not finite. None if unknown.
        n_warmup_steps: Optimizer steps in which the scaler searches for its scale, where skips are normal.
    """

    scale: float
    first_scale: float
    n_steps: int
    skips: int | None
    n_warmup_steps: int = 0
    warmup_skips: int = 0
