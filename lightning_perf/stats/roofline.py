"""Find the bottleneck of an operation by the roofline model, extended by launch latency.

Williams, Waterman, Patterson (2009), "Roofline: an insightful visual performance model". A piece of work takes at
least its operations ÷ the device's arithmetic rate, its bytes ÷ the memory bandwidth, and its operators × the launch
latency. The largest of the three is the bottleneck, if it explains the measured time.
"""

from typing import NamedTuple

import msgspec

from lightning_perf.records import (
    Bound,
    Ceilings,
    DatasheetPeak,
    Distribution,
    ModelProfile,
    ModuleProfile,
    OperatorProfile,
    Utilisation,
)

# Convolutions by Winograd's algorithm multiply up to four times less often than is counted; nothing else outruns a
# ceiling that was measured on a quiet device.
MAX_BELIEVABLE_FRACTION = 5.0
EXPLAINED_FRACTION = 0.6
"""If no ceiling explains this share of the time, latency is the limit: Nsight Compute's guide calls utilization low and
the kernel latency-bound if both compute and memory are below 60 %."""

MAX_LATENCY_S = 1e-3
"""An operator that takes longer is slow for another reason than launch latency, which is microseconds."""

LOWER_PRECISIONS = ("bf16", "fp16")
MIN_SPEEDUP = 1.5  # the lower end of what sources give for mixed precision


class LowerBounds(NamedTuple):
    """Lower bounds of a piece of work in seconds, by ceiling; None if the ceiling is unknown."""

    compute_s: float | None
    bandwidth_s: float | None
    launch_s: float | None

    def largest(self) -> tuple[Bound, float] | None:
        """Return the limiting ceiling and its seconds."""
        names: tuple[Bound, ...] = ("compute", "bandwidth", "launch")
        known = [(name, seconds) for name, seconds in zip(names, self, strict=True) if seconds is not None]
        return max(known, key=lambda pair: pair[1], default=None)


def lower_bounds(flops: int, n_bytes: int, n_operators: int, ceilings: Ceilings, precision: str) -> LowerBounds:
    """Return the lower bounds of a piece of work; ``n_bytes`` are counted as if there were no cache."""
    speed = ceilings.matmul_flops_per_s.get(precision)
    rate, launch_s = ceilings.copy_bytes_per_s, ceilings.launch_s
    return LowerBounds(
        0.0 if not flops else flops / speed if speed else None,
        n_bytes / rate if rate else None,
        n_operators * launch_s if launch_s is not None else None,
    )


def bound_of(work: LowerBounds, seconds: float | None, n_operators: int) -> Bound | None:
    """Return what limits work that took ``seconds``; None if time or ceilings are missing or do not explain it."""
    found = work.largest()
    if seconds is None or seconds <= 0 or found is None or work.compute_s is None or work.bandwidth_s is None:
        return None
    name, needed_s = found
    return name if needed_s >= EXPLAINED_FRACTION * seconds else _latency(seconds, n_operators)


def _latency(seconds: float, n_operators: int) -> Bound | None:
    """Return ``"latency"`` if the operators are short enough for it."""
    return "latency" if seconds <= MAX_LATENCY_S * max(1, n_operators) else None


def ridge(ceilings: Ceilings, precision: str) -> float | None:
    """Return the operations per byte above which arithmetic is the limit; None if a ceiling is unknown."""
    speed = ceilings.matmul_flops_per_s.get(precision)
    return speed / ceilings.copy_bytes_per_s if speed and ceilings.copy_bytes_per_s else None


def intensity(flops: int | None, n_bytes: int | None) -> float | None:
    """Return the operations per byte; None if either is unknown, or no byte moved."""
    return flops / n_bytes if flops is not None and n_bytes else None


def lower_precision_speedup(ceilings: Ceilings, precision: str) -> tuple[str, float] | None:
    """Return the fastest 16-bit precision and its speedup of matrix multiplication; None if none is faster."""
    now = ceilings.matmul_flops_per_s.get(precision)
    if not now or precision in LOWER_PRECISIONS:
        return None
    others = {name: ceilings.matmul_flops_per_s.get(name, 0.0) / now for name in LOWER_PRECISIONS}
    best = max(others, key=lambda name: others[name])
    return (best, others[best]) if others[best] >= MIN_SPEEDUP else None


def advice(bound: Bound | None, precision: str, ceilings: Ceilings | None) -> str:
    """Return advice for a piece of work; empty if nothing is known."""
    if bound is None or ceilings is None:
        return ""
    if bound == "compute":
        faster = lower_precision_speedup(ceilings, precision)
        if faster is not None:
            return f"use {faster[0]}: matrix multiplication is {faster[1]:.1f}x faster than in {precision} here"
        return "already at the device's peak: reduce operations, or use a faster device"
    return {
        "bandwidth": "move fewer bytes: fuse operators (torch.compile), use a smaller dtype, avoid layout copies",
        "launch": "use fewer, larger operators: torch.compile, CUDA graphs, a larger batch",
        "latency": "use a larger batch, or fuse operators (torch.compile)",
    }[bound]


def assessed(
    profile: ModelProfile,
    ceilings: Ceilings | None,
    datasheet: DatasheetPeak | None,
    step_s: Distribution | None = None,
    n_timed: int = 0,
    is_optimizer_timed: bool = False,
) -> ModelProfile:
    """Return the profile compared with the capabilities of the device.

    Ceilings that the model exceeds are left out, with a reason. ``step_s`` is the time of a training step, from
    ``n_timed`` steps; None to keep the profile's own.
    """
    if step_s is not None:
        profile = msgspec.structs.replace(
            profile, step_s=step_s, n_timed=n_timed, is_optimizer_timed=is_optimizer_timed
        )
    used = utilization(profile, ceilings, datasheet)
    if used is not None and (used.measured_fraction or 0.0) > MAX_BELIEVABLE_FRACTION:
        reason = (
            f"the device was measured at {(used.measured_flops_per_s or 0.0) / 1e9:.3g} GFLOP/s and the model reached "
            f"{used.measured_fraction:.3g} times that: another program used the device during the measurement"
        )
        profile = msgspec.structs.replace(profile, missing={**profile.missing, "ceilings": reason})
        ceilings = None
    if ceilings is None:
        bound, modules, operators = None, profile.modules, profile.operators
    else:
        modules = tuple(_assessed_module(module, ceilings, profile.precision) for module in profile.modules)
        operators = tuple(_assessed_operator(each, ceilings, profile.precision) for each in profile.operators)
        bound = _bound_of_step(profile, ceilings)
    return msgspec.structs.replace(
        profile,
        ceilings=ceilings,
        datasheet=datasheet,
        modules=modules,
        operators=operators,
        utilisation=utilization(profile, ceilings, datasheet),
        bound=bound,
        advice=advice(bound, profile.precision, ceilings),
    )


def utilization(
    profile: ModelProfile, ceilings: Ceilings | None, datasheet: DatasheetPeak | None
) -> Utilisation | None:
    """Return the model FLOPS utilization (PaLM, 2022) of a training step, else of the forward pass.

    None if operations, time or both ceilings are missing.
    """
    timed = profile.step_s or profile.forward_s
    if profile.forward_flops is None or timed is None or timed.p50 <= 0:
        return None
    flops = profile.forward_flops
    if profile.step_s is not None:
        flops += (profile.backward_flops or 0) - profile.recomputed_flops
    measured = ceilings.matmul_flops_per_s.get(profile.precision) if ceilings is not None else None
    listed = datasheet.matmul_flops_per_s.get(profile.precision) if datasheet is not None else None
    if flops <= 0 or (measured is None and listed is None):
        return None
    speed = flops / timed.p50
    return Utilisation(
        flops_per_s=speed,
        step_s=timed.p50,
        precision=profile.precision,
        measured_flops_per_s=measured,
        measured_fraction=speed / measured if measured else None,
        datasheet_flops_per_s=listed,
        datasheet_fraction=speed / listed if listed else None,
        datasheet=f"{datasheet.chip}: {datasheet.source}" if datasheet is not None and listed else "",
    )


def _bound_of_step(profile: ModelProfile, ceilings: Ceilings) -> Bound | None:
    """Return what limits forward and backward: the lower bounds of modules and loss, added up by their limits.

    They are compared with the time of the modules, or of the whole step if modules were not timed.
    """
    timed = profile.step_s or profile.forward_s
    by_module = [spent_s for module in profile.modules if (spent_s := module_s(module)) is not None]
    seconds = sum(by_module) or (timed.p50 if timed is not None else 0.0)
    if seconds <= 0 or profile.forward_flops is None:
        return None
    if profile.basis == "uncompiled":  # fused operators move fewer bytes, and are fewer
        needed_s = lower_bounds_of_step(profile, ceilings).compute_s or 0.0
        return "compute" if needed_s >= EXPLAINED_FRACTION * seconds else None
    totals: dict[Bound, float] = {"compute": 0.0, "bandwidth": 0.0, "launch": 0.0}
    for module in profile.modules:
        work = _lower_bounds_of(module, ceilings, profile.precision)
        found = work.largest()
        if found is None or work.compute_s is None or work.bandwidth_s is None:
            return None
        totals[found[0]] += found[1]
    if sum(totals.values()) < EXPLAINED_FRACTION * seconds:
        return _latency(seconds, sum(module.n_operators or 0 for module in profile.modules))
    return max(totals, key=lambda name: totals[name])


def _lower_bounds_of(module: ModuleProfile, ceilings: Ceilings, precision: str) -> LowerBounds:
    return lower_bounds(*work_of(module), module.n_operators or 0, ceilings, precision)


def lower_bounds_of_step(profile: ModelProfile, ceilings: Ceilings) -> LowerBounds:
    """Return the lower bounds of forward and backward of the counted step."""
    n_operators = sum(module.n_operators or 0 for module in profile.modules)
    return lower_bounds(*work_of(profile), n_operators, ceilings, profile.precision)


def work_of(counted: ModuleProfile | ModelProfile) -> tuple[int, int]:
    """Return operations and bytes of forward and backward in one step; 0 for what was not counted."""
    return (
        (counted.forward_flops or 0) + (counted.backward_flops or 0),
        (counted.forward_bytes or 0) + (counted.backward_bytes or 0),
    )


def module_s(module: ModuleProfile) -> float | None:
    """Return the seconds per step of a module, forward and backward; None if not timed."""
    known = [value for value in (module.forward_s, module.backward_s) if value is not None]
    return sum(known) if known else None


def _assessed_module(module: ModuleProfile, ceilings: Ceilings, precision: str) -> ModuleProfile:
    if module.forward_flops is None:
        return module
    bound = bound_of(_lower_bounds_of(module, ceilings, precision), module_s(module), module.n_operators or 0)
    return msgspec.structs.replace(module, bound=bound, advice=advice(bound, precision, ceilings))


_PRECISION_OF = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _assessed_operator(operator: OperatorProfile, ceilings: Ceilings, most: str) -> OperatorProfile:
    precision = _PRECISION_OF.get(operator.dtype, operator.dtype)
    if (precision, most) == ("fp32", "tf32"):
        precision = most
    work = lower_bounds(operator.flops, operator.n_bytes, operator.calls, ceilings, precision)
    return msgspec.structs.replace(operator, bound=bound_of(work, operator.total_s, operator.calls))
