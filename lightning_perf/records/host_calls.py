"""Work of the host in a step: operators that make it wait, loops over tensors, compilation, loss scaling."""

from typing import Literal

from .base import Record

Owner = Literal["user", "lightning", "other"]


class SyncCall(Record, frozen=True, kw_only=True):
    """One line whose operators need a result on the host: on a device, the host waits for it there.

    Attributes:
        operator: What waits, as one writes it: ``"item"``, ``"tolist"``, ``"bool(tensor)"``, ``"print(tensor)"``,
            ``"cpu"``, ``"numpy"``, ``"nonzero"``, ``"boolean mask"``; else the operator's own name.
        file: The innermost file of the user's code; of Lightning's where none of the user's was running. Empty where
            no Python was (the backward pass of a device).
        per_step: Calls per step, of the sampled steps.
        cost_s: Host seconds per step inside these operators; None where only their number is known. On a CPU it is the
            operator's own work: nothing waits there.
        owner: Whose line it is: the user's, Lightning's (progress bar, clipping, its loggers), or another library's.
        phase: The phase of the step that it is called in, one of ``PHASES``.
        code: The line itself; empty if its file cannot be read.
        source: ``"operator"``: seen as an operator; ``"device"``: the device's own warning.
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
        file: Of the user's code.
        line: The line that takes the elements, or where the loop's operators are called.
        repeats: Most calls of it from this line within one call of the function.
        operators_per_step: Operators called from the function, a step.
        cost_s: Seconds per step between the function's first and last operator, in the sampled steps; without
            the known cost of sampling.
        share: ``cost_s`` ÷ the duration of the sampled step, corrected in the same way.
        first_line: Where the function begins; 0 when not known.
        last_line: Where it ends; 0 if unknown.
        phase: The phase of the step that it runs in, one of ``PHASES``.
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
    phase: str = "forward"


class AttentionCall(Record, frozen=True, kw_only=True):
    """Unfused attention: a product, a softmax and another product, with the score matrix written to memory.

    Attributes:
        file: Of the user's code; empty if none was running.
        rows, columns: Of one score matrix.
        cost_s: Host seconds per step in the three, forward and backward; None on a device, whose work the host does not
            wait for.
        share: ``cost_s`` ÷ the duration of the sampled step; None on a device.
        via: The function of torch that wrote it out for the user, e.g. ``"multi_head_attention_forward"``; empty where
            the user's own line did.
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
    code: str = ""


class SyncCalls(Record, frozen=True, kw_only=True):
    """What a few sampled steps called, operator by operator.

    Attributes:
        step_s: Their mean duration, without the known cost of sampling.
        device: Kind of the device: ``"cpu"``, ``"cuda"`` …
        calls: Lines that make the host wait, the most frequent first; at most 32.
        loops: Python loops over tensors, costliest first; at most 8.
        attentions: Attention written out; at most 8.
        operators_per_step: Operators per step below autograd, backward among them.
        unseen: What sampling cannot see, and why.
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
        n: Recompilations, the first compilation not counted.
        n_after_warmup: Of these, after the run's first steps.
        reason: The guard that failed last; empty if unknown.
        compile_s: Seconds in these; None if unknown.
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
        reason: Torch's own words, shortened.
        file: Of the user's code; empty if unknown.
        n: How often it was met while compiling. At run time, each step passes it.
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
        n_compiled_steps: Steps in which something was compiled; these are left out of the statistics.
        n_after_warmup: Compilations after the run's first steps.
        recompiles: The most frequent first; at most 16.
        graph_breaks: The most frequent first; at most 16.
        missing: Reasons for missing values.
    """

    n_compiles: int
    compile_s: float
    n_compiled_steps: int = 0
    n_after_warmup: int = 0
    compile_after_warmup_s: float = 0.0
    n_functions: int = 0
    recompiles: tuple[Recompile, ...] = ()
    graph_breaks: tuple[GraphBreak, ...] = ()
    missing: dict[str, str] = {}


class LossScaler(Record, frozen=True, kw_only=True):
    """What the loss scaler of fp16 training did.

    Attributes:
        scale: The latest known scale.
        first_scale: The first known one.
        n_steps: Optimizer steps that were asked for after the first ``n_warmup_steps``.
        skips: Of these, the steps that were not made because gradients were not finite. None if unknown.
        n_warmup_steps: Optimizer steps in which the scaler is still looking for its scale; skips there are usual.
    """

    scale: float
    first_scale: float
    n_steps: int
    skips: int | None
    n_warmup_steps: int = 0
    warmup_skips: int = 0
