"""Operations and bytes of a model by module and operator, compared with what the device can do."""

from typing import Literal, TypeAlias

from .base import Record
from .known_results import BackwardPasses, KnownResults
from .memory import Breakdown
from .steps import Distribution

Bound = Literal["compute", "bandwidth", "launch", "latency"]
"""Bottleneck of an operation: arithmetic, memory traffic, launching its operators, or none of these."""

Basis = Literal["step", "shapes", "uncompiled"]
"""How operations were counted; see ``ModelProfile.basis``."""


class Ceilings(Record, frozen=True, kw_only=True):
    """Peak rates of a device, measured on it with torch's own operators.

    Attributes:
        device: ``"cpu"``, ``"cuda"`` …
        name: Name from the driver; on a CPU, the processor's model.
        n_threads: Threads of torch; None if the device is no CPU.
        matmul_flops_per_s: Floating-point operations per second of large matrix multiplications by precision
            (``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"``); a multiplication and an addition count as two.
        copy_bytes_per_s: Bytes read plus bytes written per second by a copy within the device's memory.
        h2d_pinned_bytes_per_s: Copies from pinned host memory to the device; None on a CPU.
        h2d_pageable_bytes_per_s: Copies from pageable host memory to the device; None on a CPU.
        launch_s: Launch latency of one small operator on the host.
        measured_at: ISO 8601, UTC.
        missing: Why a figure is None.
    """

    device: str
    name: str
    torch: str
    n_threads: int | None = None
    matmul_flops_per_s: dict[str, float] = {}
    copy_bytes_per_s: float | None = None
    h2d_pinned_bytes_per_s: float | None = None
    h2d_pageable_bytes_per_s: float | None = None
    launch_s: float | None = None
    measured_at: str = ""
    took_s: float | None = None
    missing: dict[str, str] = {}


class DatasheetPeak(Record, frozen=True, kw_only=True):
    """Peak rates of a device from its datasheet.

    Attributes:
        chip: The vendor's name, e.g. ``"H100 SXM"``.
        matmul_flops_per_s: Dense matrix multiplication, by precision as in ``Ceilings``.
    """

    chip: str
    matmul_flops_per_s: dict[str, float]
    memory_bytes_per_s: float | None
    source: str


class Utilisation(Record, frozen=True, kw_only=True):
    """Model FLOPS utilization: the arithmetic of a step relative to the device's peak rate.

    Attributes:
        flops_per_s: Operations of forward and backward ÷ the step's time; recomputed activations are excluded.
        step_s: Seconds per step.
        precision: Precision of most matrix multiplications, e.g. ``"bf16"``.
        measured_flops_per_s: The device's measured ceiling; None if it was not measured.
        measured_fraction: ``flops_per_s`` ÷ ``measured_flops_per_s``.
        datasheet_flops_per_s: The datasheet's peak; None for an unknown chip.
        datasheet_fraction: ``flops_per_s`` ÷ ``datasheet_flops_per_s``.
        datasheet: Chip and document.
    """

    flops_per_s: float
    step_s: float
    precision: str
    measured_flops_per_s: float | None = None
    measured_fraction: float | None = None
    datasheet_flops_per_s: float | None = None
    datasheet_fraction: float | None = None
    datasheet: str = ""


class ModuleProfile(Record, frozen=True, kw_only=True):
    """One of the listed modules.

    Work counts only in the innermost listed module, so that the figures of all modules add up to the model's.

    Attributes:
        path: As in ``named_modules``; ``""`` for work outside of listed modules (the loss, the step itself).
        class_name: E.g. ``"Linear"``; empty for ``""``.
        site: The user's line that makes it, e.g. ``"model.py:31"``; empty if unknown, and in older sessions.
        n_parameters: Elements; a shared parameter counts in the first module that has it.
        calls: Calls of forward per step.
        forward_flops: FLOPs of matrix multiplication, convolution and attention per step; None if not counted.
        backward_flops: The same for the backward pass, including recomputed activations.
        forward_bytes: Bytes that its operators read and write per step, without caches.
        backward_bytes: The same for the backward pass.
        n_operators: Operators per step, forward and backward, without views.
        forward_s: Seconds per step; None if not timed.
        backward_s: Seconds per step; None if not timed.
        bound: Its bottleneck; None if unknown.
        advice: What to change; empty if nothing is known.
    """

    path: str
    class_name: str
    n_parameters: int
    calls: int = 0
    forward_flops: int | None = None
    backward_flops: int | None = None
    forward_bytes: int | None = None
    backward_bytes: int | None = None
    n_operators: int | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    bound: Bound | None = None
    advice: str = ""
    site: str = ""


class OperatorProfile(Record, frozen=True, kw_only=True):
    """One of torch's operators in one step, forward and backward together.

    Attributes:
        dtype: Dtype of its largest input, e.g. ``"float32"``.
        calls: Calls per step.
        flops: As in ``ModuleProfile``; 0 for operators that multiply no matrices.
        n_rows: Product of all dimensions but the last of each call's first tensor, summed over calls; 0 for operators
            that multiply no matrices.
        total_s: Seconds per step; None if not timed.
        bound: Its bottleneck; None if unknown.
        denormal_fraction: Mean fraction of denormal numbers in its inputs, from a sample of each tensor, each call
            weighted by its time; None for other devices than a CPU, and for operators that multiply no matrices.
    """

    name: str
    dtype: str
    calls: int
    flops: int
    n_bytes: int
    n_rows: int = 0
    total_s: float | None = None
    bound: Bound | None = None
    denormal_fraction: float | None = None


class LossTargets(Record, frozen=True, kw_only=True):
    """Targets of the largest cross-entropy of one step, and of its other chunks in the same line.

    Attributes:
        n_targets: Positions for which classes are predicted.
        n_ignored: Those whose target is ``ignore_index``, which the loss leaves out.
        n_classes: Classes, e.g. the size of a vocabulary.
        ignore_index: That target.
        site: The user's line that calls the loss, e.g. ``"model.py:31"``; empty if unknown.
        layer_site: The line that calls the output layer; empty if unknown.
    """

    n_targets: int
    n_ignored: int
    n_classes: int
    ignore_index: int = 0
    site: str = ""
    layer_site: str = ""


PairKind: TypeAlias = Literal["products", "distances", "similarities", "comparisons"]


class BroadcastSum(Record, frozen=True, kw_only=True):
    """Relations of all pairs of rows that are computed by broadcasting.

    Attributes:
        shape: Shape of the tensor to which rows are broadcast.
        n_bytes: Its bytes.
        kind: ``"products"``, ``"distances"`` or ``"similarities"`` (cosine) where a sum over one dimension follows;
            ``"comparisons"`` of which is larger, and what is computed from them.
        total_s: Seconds per step of the operators up to the sum, or of all on such tensors, and of their backward pass;
            0 if operators were not timed.
        site: The user's line that broadcasts, e.g. ``"model.py:31"``; empty if unknown.
    """

    shape: tuple[int, ...]
    n_bytes: int
    kind: PairKind
    total_s: float = 0.0
    site: str = ""


ZeroKind: TypeAlias = Literal["diagonal", "one-hot", "sparse"]


class ZeroOperand(Record, frozen=True, kw_only=True):
    """Products or decompositions of matrices that are mostly zeros, of one kind, on a CPU.

    Attributes:
        kind: ``"diagonal"``; ``"one-hot"``: at most one nonzero element in a row; ``"sparse"``: any other.
        shape: Shape of the matrix that takes the most time.
        nonzero_fraction: The fraction of its elements that are not zero.
        is_product: Whether its operator is a product.
        n_operators: Such operators in the step.
        total_s: Seconds of them and their backward pass in the step.
        site: The user's line that calls the costliest one, e.g. ``"model.py:31"``; empty if unknown.
    """

    kind: ZeroKind
    shape: tuple[int, ...]
    nonzero_fraction: float
    is_product: bool
    n_operators: int
    total_s: float = 0.0
    site: str = ""


class RepeatedRows(Record, frozen=True, kw_only=True):
    """Operators on a CPU that compute each row of their results several times, since the rows that they get are copies.

    Attributes:
        n_copies: How often each row occurs; on average, rounded down, unless ``is_regular``.
        shape: Shape of the result that takes the most time.
        n_operators: Such operators in the step.
        total_s: Seconds of them and their backward pass in the step.
        site: The user's line that calls the costliest one, e.g. ``"model.py:31"``, or an embedding unless
            ``is_regular``; empty if unknown.
        is_regular: Whether all occur equally often and equally far apart; if not, an embedding looks up equal rows of
            indices.
        are_joined: Whether rows are concatenated from copies, so that ``n_copies`` times fewer elements suffice.
    """

    n_copies: int
    shape: tuple[int, ...]
    n_operators: int
    total_s: float = 0.0
    site: str = ""
    is_regular: bool = True
    are_joined: bool = False


CheaperKind: TypeAlias = Literal[
    "transform", "convolution", "interpolation", "sort", "penalty", "order", "diagonal", "rows", "function", "max_norm",
    "factor", "kernel", "scatter", "packed",
]  # fmt: skip


class CheaperOperator(Record, frozen=True, kw_only=True):
    """Operators of one kind whose results others give in less time.

    Attributes:
        kind: ``"transform"``: a Fourier transform, and an inverse one, whose length has a large prime factor;
            ``"convolution"``: one of signals with a long kernel; ``"interpolation"``: one of more channels than the
            pointwise convolution behind it has; ``"sort"``: a sort of which only the elements at one end are read;
            ``"penalty"``: squares of parameters in the loss, which a weight decay can replace; ``"order"``: products of
            three matrices that take fewer multiplications in the other order; ``"diagonal"``: a product of matrices
            of which only the diagonal is read; ``"rows"``: a layer of whose rows few are read; ``"function"``: several
            operators that one function of torch replaces; ``"max_norm"``: an embedding that limits the norm of rows;
            ``"factor"``: the decomposition of a matrix of which a factor is known; ``"kernel"``: convolutions whose
            kernels are outer products; ``"scatter"``: rows that are added by an index for each element;
            ``"packed"``: recurrent layers over packed sequences.
        shape: Shape of the tensor that takes the most time; of a padded batch, sequences and steps.
        size: Length of the transform, the kernel, or the diagonal, channels that are interpolated, elements in each
            sorted row, multiplications of three matrices, rows of a layer, of an embedding that are looked up, or to
            which others are added, columns of a factor, or steps of all sequences; else 0.
        better: A better length of the transform, channels behind the convolution, the elements of each sorted row
            that are read, the multiplications in the other order, the rows of a layer that are read, or 1 for a factor
            of few columns to whose product a diagonal is added; else 0.
        function: What replaces the operators, as in code, if ``"function"`` or ``"scatter"``; the recurrent layer, e.g.
            ``"nn.LSTM"``, if ``"packed"``; else empty.
        n_operators: Such operators in the step.
        total_s: Seconds of them and their backward pass in the step; 0 if operators were not timed.
        site: The user's line that calls the costliest one, e.g. ``"model.py:31"``; empty if unknown.
    """

    kind: CheaperKind
    shape: tuple[int, ...]
    n_operators: int
    size: int = 0
    better: int = 0
    function: str = ""
    total_s: float = 0.0
    site: str = ""


class ModelProfile(Record, frozen=True, kw_only=True):
    """A model's arithmetic, counted in one step, compared with the device's ceilings.

    Attributes:
        device: Device of the model: ``"cpu"``, ``"cuda:0"`` …
        n_parameters: Elements; a shared parameter counts once.
        n_trainable: Elements that require a gradient.
        n_samples: Batch size; None if unknown.
        reads_batch: Whether an operator of the step reads a tensor of the batch; None if unknown, and if ``basis`` is
            not ``"step"``.
        step: Batches before the step that was counted; None outside a run.
        basis: ``"step"`` if the operators of a step were counted; ``"shapes"`` if its modules were counted on fake
            tensors of the shapes in the run, without sharding; ``"uncompiled"`` if also without the compiler.
        precision: Precision of most arithmetic: ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"`` or another dtype.
        forward_flops: FLOPs of matrix multiplications, convolutions and attention, where a multiplication and an
            addition count as two; None if not counted.
        backward_flops: The same for the backward pass; None without one.
        recomputed_flops: The part of ``backward_flops`` that recomputes activations (checkpointing).
        forward_bytes: Bytes that all operators read and write, without caches.
        backward_bytes: The same for the backward pass.
        uncounted: Operators that do arithmetic whose amount is unknown; they count as 0.
        saved_bytes: Activations that the forward pass saves for the backward pass; None if ``basis`` is ``"step"``: the
            breakdown of memory has them.
        forward_s: Time of the forward pass alone; None if not timed.
        step_s: Time of a training step: forward, backward and the optimizer's step if there is one.
        is_optimizer_timed: Whether ``step_s`` includes an optimizer's step.
        n_timed: Repetitions behind these times, without warm-up.
        module_depth: Depth to which modules are listed; 1 for top-level modules.
        modules: Costliest first.
        operators: Costliest first, at most 24.
        n_passes: Times that the step called ``training_step`` with the same parameters; 0 if not counted.
        pass_site: The user's line above the first of them, e.g. ``"model.py:31"``; empty if there is none.
        targets: Targets of its cross-entropy; None without one behind an output layer of its own, and if ``basis`` is
            not ``"step"``.
        broadcast: Its costliest sum over tensors that were broadcast to all pairs. Like the five fields below it, None
            or empty where no such operator ran, and if ``basis`` is not ``"step"``.
        zeros: Products or decompositions of matrices that are mostly zeros; None on a device.
        repeated_rows: Operators that compute the same rows several times; None on a device.
        cheaper: Operators whose results others give in less time.
        backward_passes: By the line that starts them; empty on a device.
        known_results: Operators that could be saved.
        memory: Memory in use; None in a session, which has it in ``Session.memory``.
        ceilings: Ceilings of the device; None if not measured.
        datasheet: Peak rates from the datasheet; None for an unknown chip.
        utilisation: None if arithmetic, time or both peaks of the device are unknown.
        bound: Bottleneck of forward and backward as a whole.
        advice: What to change; empty if nothing is known.
        missing: Why a figure is None.
    """

    class_name: str
    device: str
    n_parameters: int
    n_trainable: int
    parameters_bytes: int
    n_samples: int | None = None
    reads_batch: bool | None = None
    step: int | None = None
    basis: Basis = "step"
    precision: str = ""
    forward_flops: int | None = None
    backward_flops: int | None = None
    recomputed_flops: int = 0
    forward_bytes: int | None = None
    backward_bytes: int | None = None
    uncounted: tuple[str, ...] = ()
    saved_bytes: int | None = None
    forward_s: Distribution | None = None
    step_s: Distribution | None = None
    is_optimizer_timed: bool = False
    n_timed: int = 0
    module_depth: int = 1
    modules: tuple[ModuleProfile, ...] = ()
    operators: tuple[OperatorProfile, ...] = ()
    n_passes: int = 0
    pass_site: str = ""
    targets: LossTargets | None = None
    broadcast: BroadcastSum | None = None
    zeros: ZeroOperand | None = None
    repeated_rows: RepeatedRows | None = None
    cheaper: CheaperOperator | None = None
    backward_passes: tuple[BackwardPasses, ...] = ()
    known_results: tuple[KnownResults, ...] = ()
    memory: Breakdown | None = None
    ceilings: Ceilings | None = None
    datasheet: DatasheetPeak | None = None
    utilisation: Utilisation | None = None
    bound: Bound | None = None
    advice: str = ""
    missing: dict[str, str] = {}
