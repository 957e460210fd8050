"""What reports say of a model's arithmetic: modules and operators against what the device can do."""

from __future__ import annotations

from typing import NamedTuple

from lightning_perf.records import ModelProfile, Utilisation
from lightning_perf.stats.roofline import intensity, module_s, ridge, work_of

from .wording import count, line, number, seconds, share, size

MAX_MODULES = 12
MAX_OPERATORS = 8
_LEAST_SHARE = 0.005

MODULE_HEADS = ("module", "type", "FLOPs", "share", "bytes", "FLOP/B", "time", "FLOP/s", "bound")
OPERATOR_HEADS = ("operator", "dtype", "calls", "FLOPs", "bytes", "FLOP/B", "time", "FLOP/s", "bound")
ALIGNMENTS = "llrrrrrrl"
_FOR_WIDE = ("type", "dtype", "FLOP/s")

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class ModelTable(NamedTuple):
    """A table of text: heads above, how each column is aligned (``l`` or ``r``), rows."""

    heads: tuple[str, ...]
    alignments: str
    rows: list[tuple[str, ...]]


def flops(value: float | None) -> str:
    """Operations: ``3.63 G``."""
    if value is None:
        return ""
    for factor, unit in _UNITS:
        if value >= factor * 0.9995:
            return f"{number(value / factor)} {unit}"
    return number(value)


def flops_in(value: float | None, unit: str = "FLOPs") -> str:
    """Operations with their unit: ``3.63 GFLOPs``, ``16 FLOPs``."""
    text = flops(value)
    return f"{text}{unit}" if text[-1:].isalpha() else f"{text} {unit}"


def title(profile: ModelProfile) -> str:
    """What the tables are about."""
    return f"What the arithmetic of {line(profile.class_name, 60)} costs on {line(profile.device, 16)}"


def facts(profile: ModelProfile) -> list[str]:
    """The model as a whole: operations, bytes, times."""
    told = [f"{number(profile.n_parameters)} parameters ({size(profile.parameters_bytes)})"]
    if profile.n_samples is not None:
        told.append(f"a batch of {profile.n_samples:,}")
    if profile.forward_flops is not None:
        told.append(f"forward {flops_in(profile.forward_flops)}")
    if profile.backward_flops is not None:
        told.append(f"backward {flops_in(profile.backward_flops)}")
    if profile.recomputed_flops:
        told.append(f"of these {flops_in(profile.recomputed_flops)} compute activations again")
    n_flops, n_bytes = work_of(profile)
    if n_bytes:
        told.append(f"{size(n_bytes)} read and written, {number(intensity(n_flops, n_bytes))} FLOP/B")
    if profile.precision:
        told.append(f"mostly in {line(profile.precision, 16)}")
    if profile.uncounted:
        told.append("not counted: " + ", ".join(line(name, 60) for name in profile.uncounted[:4]))
    return told


def time_facts(profile: ModelProfile) -> list[str]:
    """Latency and throughput; empty where nothing was timed by itself."""
    told = []
    for name, timed in (("forward", profile.forward_s), ("step", profile.step_s)):
        if timed is not None:
            told.append(f"{name} {seconds(timed.p50)} (p50), {seconds(timed.p95)} (p95)")
    timed = profile.step_s or profile.forward_s
    if timed is not None and profile.n_samples and timed.p50 > 0:
        told.append(f"{number(round(profile.n_samples / timed.p50, 1))} samples/s")
    if told:
        told.append(count(profile.n_timed, "repetition"))
    return told


def utilisation_facts(used: Utilisation | None) -> list[str]:
    """Utilisation, each share with what it is a share of."""
    if used is None:
        return []
    told = [f"{flops_in(used.flops_per_s, 'FLOP/s')} in {line(used.precision, 16)}"]
    if used.measured_fraction is not None:
        told.append(
            f"{share(used.measured_fraction)} of the {flops_in(used.measured_flops_per_s, 'FLOP/s')} measured here"
        )
    if used.datasheet_fraction is not None:
        chip = line(used.datasheet, 80)
        told.append(
            f"{share(used.datasheet_fraction)} of the maker's {flops_in(used.datasheet_flops_per_s, 'FLOP/s')} ({chip})"
        )
    return told


def bound_facts(profile: ModelProfile) -> list[str]:
    """What limits a step, and what would help."""
    told = []
    if profile.bound is not None:
        part = "forward" if profile.backward_flops is None else "forward and backward"
        told.append(f"{part}: bound by {bound_name(profile.bound)}")
    if profile.advice:
        told.append(line(profile.advice, 120))
    if profile.ceilings is not None:
        edge = ridge(profile.ceilings, profile.precision)
        if edge is not None:
            told.append(f"memory decides below {number(edge)} FLOP/B")
    return told


def bound_name(bound: str) -> str:
    """As reports write it."""
    return {"bandwidth": "memory", "launch": "starting operators"}.get(bound, bound)


def module_table(profile: ModelProfile, is_wide: bool = True) -> ModelTable | None:
    """Modules, costliest first; None where none was counted. Columns that hold nothing are left out.

    Args:
        profile: The figures.
        is_wide: Whether there is room for all columns.
    """
    counted = [module for module in profile.modules if module.forward_flops is not None]
    whole = sum(work_of(module)[0] for module in counted)
    times = [module_s(module) for module in counted]
    whole_s = sum(t or 0.0 for t in times)
    rows: list[tuple[str, ...]] = []
    for module, taken_s in zip(counted, times, strict=True):
        n_flops, n_bytes = work_of(module)
        part = taken_s / whole_s if taken_s is not None and whole_s else n_flops / whole if whole else 0.0
        if part < _LEAST_SHARE and n_flops < _LEAST_SHARE * whole:
            continue
        rows.append(
            (line(module.path or "outside modules", 40), line(module.class_name, 24), flops(n_flops),
             share(n_flops / whole) if whole else "", size(n_bytes), _number(intensity(n_flops, n_bytes)),
             seconds(taken_s) if taken_s is not None else "",
             flops(n_flops / taken_s) if taken_s else "", bound_name(module.bound or ""))
        )  # fmt: skip
    return _without_empty(MODULE_HEADS, rows[:MAX_MODULES], is_wide) if rows else None


def operator_table(profile: ModelProfile, is_wide: bool = True) -> ModelTable | None:
    """Operators, costliest first; None where none was counted. Columns that hold nothing are left out.

    Args:
        profile: The figures.
        is_wide: Whether there is room for all columns.
    """
    rows: list[tuple[str, ...]] = [
        (line(each.name.removeprefix("aten::"), 40), line(each.dtype, 12), f"{each.calls:,}", flops(each.flops),
         size(each.n_bytes), _number(intensity(each.flops, each.n_bytes)) if each.flops else "",
         seconds(each.total_s) if each.total_s is not None else "",
         flops(each.flops / each.total_s) if each.total_s and each.flops else "", bound_name(each.bound or ""))
        for each in profile.operators[:MAX_OPERATORS]
    ]  # fmt: skip
    return _without_empty(OPERATOR_HEADS, rows, is_wide) if rows else None


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


def _without_empty(heads: tuple[str, ...], rows: list[tuple[str, ...]], is_wide: bool) -> ModelTable:
    kept = [i for i, head in enumerate(heads) if any(row[i] for row in rows) and (is_wide or head not in _FOR_WIDE)]
    return ModelTable(
        tuple(heads[i] for i in kept),
        "".join(ALIGNMENTS[i] for i in kept),
        [tuple(row[i] for i in kept) for row in rows],
    )
