"""Operations and bytes of a model by module and operator, compared with what the device can do."""

from typing import Literal

from .base import Record
from .memory import Breakdown
from .steps import Distribution

Bound = Literal["compute", "bandwidth", "launch", "latency"]
"""Bottleneck of an operation: arithmetic, memory traffic, launching its operators, or none of these."""

Basis = Literal["step", "shapes", "uncompiled"]
"""What operations were counted in: a step, or its shapes, without the compiler or only without sharding."""


class Ceilings(Record, frozen=True, kw_only=True):
    """Peak rates of a device, measured on it with torch's own operators.

    Attributes:
        device: ``"cpu"``, ``"cuda"`` …
        name: The device's, as its driver gives it; the processor's model on a CPU.
        n_threads: That torch computed with; None if the device is no CPU.
        matmul_flops_per_s: Floating-point operations per second of large matrix multiplications by precision, a
            multiplication and an addition counted as two: of ``"fp32"``, ``"tf32"``, ``"bf16"`` and ``"fp16"`` those
            measured.
        copy_bytes_per_s: Bytes read plus bytes written per second by a copy within the device's memory.
        h2d_pinned_bytes_per_s: From pinned host memory to the device; None on a CPU.
        h2d_pageable_bytes_per_s: From ordinary host memory to the device; None on a CPU.
        launch_s: Launch latency of one small operator on the host.
        measured_at: ISO 8601, UTC.
        missing: Why a figure is absent.
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
        step_s: That time.
        precision: Precision of most matrix multiplications, e.g. ``"bf16"``.
        measured_flops_per_s: The device's measured ceiling; None if it was not measured.
        measured_fraction: ``flops_per_s`` ÷ that.
        datasheet_flops_per_s: The datasheet's figure; None for an unknown chip.
        datasheet_fraction: ``flops_per_s`` ÷ that.
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
        n_parameters: Elements, a shared parameter counted in the first module that has it.
        calls: Of forward, in one step.
        forward_flops: Operations of matrix multiplication, convolution and attention in one step; None if not counted.
        backward_flops: The same in the backward pass, recomputed activations among them.
        forward_bytes: Read and written by its operators in one step, as if nothing stayed in a cache.
        backward_bytes: The same in the backward pass.
        n_operators: Started in one step, forward and backward; views that move nothing are left out.
        forward_s: Seconds per step; None if not timed.
        backward_s: Seconds per step; None if not timed.
        bound: What limits it; None if unknown.
        advice: What would help; empty if nothing is known.
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


class OperatorProfile(Record, frozen=True, kw_only=True):
    """One of torch's operators in one step, forward and backward together.

    Attributes:
        dtype: Of its largest input, e.g. ``"float32"``.
        calls: In one step.
        flops: As in ``ModuleProfile``; 0 for operators that multiply no matrices.
        n_rows: Of the first tensor of each call, the product of all its dimensions but the last; 0 for operators that
            multiply no matrices.
        total_s: Seconds in one step; None if not timed.
        bound: What limits it; None if unknown.
        denormal_fraction: Of the numbers that went in, those too small for a normal float, on average over its calls;
            from a sample of each tensor. None on other devices than a CPU, and for operators
            that multiply no matrices.
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


class ModelProfile(Record, frozen=True, kw_only=True):
    """A model's arithmetic, counted in one step, compared with the device's ceilings.

    Attributes:
        device: That it ran on: ``"cpu"``, ``"cuda:0"`` …
        n_parameters: Elements, a shared parameter once.
        n_trainable: Of these, those that require a gradient.
        n_samples: In the batch; None if unknown.
        step: Batches before the step that was counted; None outside a run.
        basis: ``"step"`` if the operators of a step were counted; ``"shapes"`` if its modules were counted on fake
            tensors of the shapes seen, without sharding; ``"uncompiled"`` if without the compiler too.
        precision: Of most of the arithmetic: ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"`` or another dtype's name.
        forward_flops: Operations of matrix multiplications, convolutions and attention, a multiplication and an
            addition counted as two; None if not counted.
        backward_flops: The same of the backward pass; None without one.
        recomputed_flops: Of ``backward_flops``, the part that computes activations again (checkpointing).
        forward_bytes: Read and written by all operators, as if nothing stayed in a cache.
        backward_bytes: The same of the backward pass.
        uncounted: Operators whose arithmetic is not known and counted as none, though they are known to do some.
        saved_bytes: Activations that the forward pass saves for the backward pass; None if ``basis`` is ``"step"``: the
            breakdown of memory has them.
        forward_s: Of the forward pass alone; None if not timed.
        step_s: Of a training step: forward, backward and the optimizer's step where there is one.
        is_optimizer_timed: Whether ``step_s`` holds an optimizer's step.
        n_timed: Repetitions behind these times, warm-up left out.
        module_depth: How deep modules are listed, 1 for the top-level ones.
        modules: Costliest first.
        operators: Costliest first, at most 24.
        memory: What its memory holds; None in a session, which has it elsewhere.
        ceilings: Of the device; None if not measured.
        datasheet: The datasheet's figures; None for an unknown chip.
        utilisation: None if arithmetic, time or both figures of the device are missing.
        bound: What limits forward and backward as a whole.
        advice: What would help; empty if nothing is known.
        missing: Why a figure is None.
    """

    class_name: str
    device: str
    n_parameters: int
    n_trainable: int
    parameters_bytes: int
    n_samples: int | None = None
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
    memory: Breakdown | None = None
    ceilings: Ceilings | None = None
    datasheet: DatasheetPeak | None = None
    utilisation: Utilisation | None = None
    bound: Bound | None = None
    advice: str = ""
    missing: dict[str, str] = {}
