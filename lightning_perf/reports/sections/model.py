"""Compute cost of the model: modules and operators against the limits of the device."""

from collections.abc import Iterator

from lightning_perf.records import Breakdown, ModelProfile, Utilisation
from lightning_perf.reports.cells import PAGE, TAB, Column, Heads, Rows, Value, number, seconds
from lightning_perf.reports.cells import share as share_cell
from lightning_perf.reports.cells import size as size_cell
from lightning_perf.reports.document import AnyPart, Document, Figure, Table, facts, section, table
from lightning_perf.reports.sections.memory import breakdown_parts, memory_title
from lightning_perf.reports.wording import count, known, line, share, size
from lightning_perf.reports.wording import number as number_text
from lightning_perf.reports.wording import seconds as seconds_text
from lightning_perf.stats.roofline import intensity, module_s, ridge, work_of

_MAX_MODULES = 12
_MAX_OPERATORS = 8
_WIDE = 95

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def model_title(profile: ModelProfile) -> str:
    """Return the heading of the section."""
    return f"Compute cost of {line(profile.class_name, 60)} ({line(profile.device, 16)})"


def model_document(profile: ModelProfile | None, memory: Breakdown | None) -> Document:
    """Return the compute cost of a model, what its memory holds, or both; outside a run."""
    sections = []
    if profile is not None:
        sections.append(section("model", model_title(profile), model_parts(profile, is_in_run=False), is_short=True))
    if memory is not None:
        sections.append(section("memory", memory_title(memory), breakdown_parts(memory), is_short=True))
    return Document(None, (), tuple(sections))


def model_parts(profile: ModelProfile | None, is_in_run: bool = True) -> Iterator[AnyPart]:
    """Yield totals, utilization and limits, then modules and operators; nothing unless FLOPs were counted.

    Step times are left out if ``is_in_run``, since other sections show them.
    """
    if profile is None or profile.forward_flops is None:
        return
    yield facts(model_facts(profile), "Model")
    if not is_in_run:
        yield facts(_time_facts(profile), "Time")
    yield facts(utilization_facts(profile.utilisation), "Utilization")
    yield facts(_bound_facts(profile), "Limit")
    yield Figure("roofline", "Roofline")
    yield module_table(profile)
    yield operator_table(profile)


def flops(value: float | None) -> str:
    """Return operations: ``3.63 G``."""
    if value is None:
        return ""
    for factor, unit in _UNITS:
        if value >= factor * 0.9995:
            return f"{number_text(value / factor)} {unit}"
    return number_text(value)


def flops_in(value: float | None, unit: str = "FLOPs") -> str:
    """Return operations with their unit: ``3.63 GFLOPs``, ``16 FLOPs``."""
    text = flops(value)
    return f"{text}{unit}" if text[-1:].isalpha() else f"{text} {unit}"


def model_facts(profile: ModelProfile) -> list[str]:
    """Return parameters, FLOPs and bytes of the whole model."""
    n_flops, n_bytes = work_of(profile)
    moved = f"{size(n_bytes)} read and written, {number_text(intensity(n_flops, n_bytes))} FLOP/byte"
    uncounted = ", ".join(line(name, 60) for name in profile.uncounted[:4])
    texts = (
        f"{number_text(profile.n_parameters)} parameters ({size(profile.parameters_bytes)})",
        known(profile.n_samples, "batch size {:,}".format),
        known(profile.forward_flops, lambda n: f"forward {flops_in(n)}"),
        known(profile.backward_flops, lambda n: f"backward {flops_in(n)}"),
        known(profile.recomputed_flops or None, lambda n: f"{flops_in(n)} of these recompute activations"),
        {"step": "", "uncompiled": "counted from shapes, as if not compiled"}.get(profile.basis, "counted from shapes"),
        known(profile.saved_bytes, lambda saved: f"{size(saved)} saved for backward"),
        moved if n_bytes else "",
        f"mostly {line(profile.precision, 16)}" if profile.precision else "",
        f"not counted: {uncounted}" if uncounted else "",
    )
    return list(filter(None, texts))


def _time_facts(profile: ModelProfile) -> list[str]:
    texts = []
    for name, timed in (("forward", profile.forward_s), ("step", profile.step_s)):
        if timed is not None:
            texts.append(f"{name} {seconds_text(timed.p50)} (p50), {seconds_text(timed.p95)} (p95)")
    timed = profile.step_s or profile.forward_s
    if timed is not None and profile.n_samples and timed.p50 > 0:
        texts.append(f"{number_text(round(profile.n_samples / timed.p50, 1))} samples/s")
    return [*texts, count(profile.n_timed, "repetition")] if texts else []


def utilization_facts(used: Utilisation | None) -> list[str]:
    """Return FLOP/s, and their share of what was measured and of the datasheet."""
    if used is None:
        return []
    texts = [f"{flops_in(used.flops_per_s, 'FLOP/s')} in {line(used.precision, 16)}"]
    if used.measured_fraction is not None:
        peak = flops_in(used.measured_flops_per_s, "FLOP/s")
        texts.append(f"{share(used.measured_fraction)} of the measured peak of {peak}")
    if used.datasheet_fraction is not None:
        peak = flops_in(used.datasheet_flops_per_s, "FLOP/s")
        texts.append(f"{share(used.datasheet_fraction)} of the {peak} of the datasheet ({line(used.datasheet, 80)})")
    return texts


def _bound_facts(profile: ModelProfile) -> list[str]:
    texts = []
    if profile.bound is not None:
        part = "forward" if profile.backward_flops is None else "forward and backward"
        texts.append(f"{part}: {bound_name(profile.bound)}-bound")
    if profile.advice:
        texts.append(line(profile.advice, 120))
    edge = ridge(profile.ceilings, profile.precision) if profile.ceilings is not None else None
    if edge is not None:
        texts.append(f"memory-bound below {number_text(edge)} FLOP/byte")
    return texts


def bound_name(bound: str) -> str:
    """Return the name of a limit as reports write it."""
    return {"bandwidth": "memory", "launch": "launch-latency"}.get(bound, bound)


def module_table(profile: ModelProfile) -> Table:
    """Return the modules with their cost; modules without counts come without FLOPs."""
    rows: Rows = []
    whole = sum(work_of(module)[0] for module in profile.modules if module.forward_flops is not None)
    for each in profile.modules:
        n_flops, n_bytes = work_of(each)
        is_counted = each.forward_flops is not None or each.backward_flops is not None
        taken_s = module_s(each)
        work, moved = (n_flops, n_bytes or None) if is_counted else (None, None)
        rows.append(
            (each.path or "outside modules", each.class_name, number(each.n_parameters), _flops(work),
             share_cell(n_flops / whole if whole and is_counted else None), size_cell(moved),
             number(intensity(work, moved)), seconds(each.forward_s), seconds(each.backward_s), seconds(taken_s),
             _flops(n_flops / taken_s if taken_s and is_counted else None), bound_name(each.bound or ""), each.advice)
        )  # fmt: skip
    heads: Heads = ("module", Column("type", _WIDE), Column("parameters", TAB), "FLOPs", "share", "bytes", "FLOP/byte",
             Column("forward", PAGE), Column("backward", PAGE), "time", Column("FLOP/s", _WIDE), "bound",
             Column("advice", TAB))  # fmt: skip
    about = "one step, forward and backward; each module without the modules listed inside it"
    bars = "time" if any(map(module_s, profile.modules)) else "FLOPs"
    return table(heads, rows, title="Modules", about=about, key="modules", n_brief=_MAX_MODULES, bars=bars,
                 bars_min_width=PAGE)  # fmt: skip


def operator_table(profile: ModelProfile) -> Table:
    """Return the operators with their cost, costliest first."""
    rows: Rows = [
        (each.name, each.dtype, number(each.calls), _flops(each.flops), size_cell(each.n_bytes),
         number(intensity(each.flops, each.n_bytes) if each.flops else None), seconds(each.total_s),
         _flops(each.flops / each.total_s if each.total_s and each.flops else None), bound_name(each.bound or ""))
        for each in profile.operators
    ]  # fmt: skip
    heads: Heads = ("operator", Column("dtype", _WIDE), "calls", "FLOPs", "bytes", "FLOP/byte", "time",
             Column("FLOP/s", _WIDE), "bound")  # fmt: skip
    about = "one sampled step, forward and backward"
    if any(map(module_s, profile.modules)):
        about += "; modules were timed in other steps, so their times differ"
    title = "Compute cost by operator"
    return table(heads, rows, title=title, about=about, key="counted-operators", n_brief=_MAX_OPERATORS, bars="time",
                 bars_min_width=PAGE)  # fmt: skip


def _flops(value: float | None) -> Value:
    return Value(flops(value), value)
