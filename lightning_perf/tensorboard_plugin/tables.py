"""What a trace's record tells in tables: the figures of the trace reader, all of them, each with its unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from lightning_perf.records import ModelProfile, TraceRecord
from lightning_perf.reports import model_rows, wording
from lightning_perf.reports.trace_console import CAUSES
from lightning_perf.stats.roofline import intensity, module_s, work_of

from . import blocks
from .blocks import Block, Cell

NO_TRACE = "No profiler window was recorded in this run, so there are no figures of single operators and kernels."


def categories(record: TraceRecord) -> Iterator[Block]:
    """Where the time of a step goes, exclusive, as the trace tells it."""
    windows = record.windows
    if not windows:
        return
    n, total = len(windows), sum(window.duration_s for window in windows) or 1.0
    rows: list[list[Cell]] = []
    for name in windows[0].categories:
        spent = sum(window.categories.get(name, 0.0) for window in windows)
        rows.append([name.replace("_", " "), blocks.seconds(spent / n), blocks.share(spent / total)])
    mean_s = fmean(window.duration_s for window in windows)
    about = f"{wording.count(n, 'step')} of" if record.steps else "the whole of"
    about += f" {wording.seconds(mean_s)}; what hides behind a kernel is not charged"
    yield blocks.table(
        f"Where {'a step' if record.steps else 'the trace'} spends its time, by the profiler",
        ["", "mean", "share"],
        rows,
        about,
        "categories",
    )


def steps(record: TraceRecord) -> Iterator[Block]:
    """Each step of a trace."""
    if not record.steps:
        return
    heads = ["step", "duration", "device busy", "busy", "waiting for data", "of it exposed", "kernels", "operators"]
    rows: list[list[Cell]] = [
        [step.name, blocks.seconds(step.duration_s), blocks.seconds(step.device_busy_s),
         blocks.share(step.busy_fraction), blocks.seconds(step.loader_s), blocks.seconds(step.loader_exposed_s),
         blocks.number(step.n_kernels), blocks.number(step.n_operators)]
        for step in record.steps
    ]  # fmt: skip
    yield blocks.table("Steps", heads, rows, key="steps")


def trace_ranks(records: Sequence[TraceRecord]) -> Iterator[Block]:
    """The traces of several ranks beside one another; what they say together, where they are of one run."""
    together = next((record.ranks for record in records if record.ranks is not None), None)
    if together is None:
        yield blocks.note("These traces do not tell that they are of ranks of one run: each is shown for itself.")
    else:
        parts = sorted({name for one in together.ranks for name in one.parts_s})
        rows: list[list[Cell]] = [
            [[str(one.rank), one.rank], blocks.seconds(one.step_s), blocks.seconds(one.own_s),
             *(blocks.seconds(one.parts_s.get(name)) for name in parts), blocks.seconds(one.waiting_s),
             blocks.share(one.last_fraction), blocks.share(one.straggler_share)]
            for one in together.ranks
        ]  # fmt: skip
        heads = ["rank", "step", "own", *parts, "waits for others", "last to come", "others wait for it"]
        title = f"{wording.count(len(together.ranks), 'rank')} together, mean of a step"
        about = f"{wording.count(together.n_steps, 'step')}, {wording.count(together.n_matched, 'collective')} matched"
        yield blocks.table(title, heads, rows, about, "together")
    rows = []
    for record in records:
        windows = record.windows
        busy = [window.busy_fraction for window in windows if window.busy_fraction is not None]
        spent = record.communication
        mean_s = fmean(window.duration_s for window in windows) if windows else None
        rows.append(
            [record.source, ["" if record.rank is None else str(record.rank), record.rank],
             blocks.number(len(record.steps)), blocks.seconds(mean_s),
             blocks.share(fmean(busy) if busy else None), blocks.seconds(spent.total_s if spent else None),
             blocks.seconds(spent.exposed_s if spent else None),
             blocks.share(spent.overlap_fraction if spent else None)]
        )  # fmt: skip
    heads = ["trace", "rank", "steps", "mean step", "device busy", "communication", "of it exposed", "hidden"]
    yield blocks.table("Traces", heads, rows, key="traces")


def what_if(record: TraceRecord) -> Iterator[Block]:
    """The step without each cause."""
    rows: list[list[Cell]] = [
        [CAUSES.get(each.cause, each.cause), blocks.seconds(each.step_s), blocks.seconds(each.low_s),
         blocks.seconds(each.high_s), blocks.seconds(each.claim_s)]
        for each in record.what_if
    ]  # fmt: skip
    if rows:
        heads = ["without", "now", "at best", "at least", "exclusive to it, in all"]
        about = "they share time: what each could gain does not add up"
        word = "step" if record.steps else "trace"
        yield blocks.table(f"What a {word} would take without each", heads, rows, about, "what-if")


def operators(record: TraceRecord | None, profile: ModelProfile | None) -> Iterator[Block]:
    """Operators by what they cost the host and the device; then what they multiply."""
    if record is None:
        yield blocks.note(NO_TRACE)
    else:
        rows: list[list[Cell]] = [
            [each.name, blocks.number(each.calls), blocks.seconds(each.host_self_s), blocks.seconds(each.host_total_s),
             blocks.seconds(each.device_self_s if record.device else None),
             blocks.seconds(each.device_total_s if record.device else None)]
            for each in record.operators
        ]  # fmt: skip
        heads = ["operator", "calls", "host, own", "host, with children", "device, own", "device, with children"]
        about = f"of {wording.seconds(record.span_s)} analysed"
        yield blocks.table("Operators", heads, rows, about, "operators")
        yield from _matrix_shapes(record)
        yield from _code_sites(record)
    yield from _counted_operators(profile)


def _matrix_shapes(record: TraceRecord) -> Iterator[Block]:
    if not record.matrix_shapes:
        return
    rows: list[list[Cell]] = [
        [each.operator, each.shapes, each.dtype, blocks.number(each.calls), blocks.seconds(each.host_s),
         blocks.seconds(each.device_s), "" if each.is_aligned is None else "yes" if each.is_aligned else "no"]
        for each in record.matrix_shapes
    ]  # fmt: skip
    heads = ["operator", "shapes", "dtype", "calls", "host", "device", "suits matrix units"]
    yield blocks.table("Matrix products and convolutions by shape", heads, rows, key="matrix-shapes")


def _code_sites(record: TraceRecord) -> Iterator[Block]:
    if not record.code_sites:
        return
    rows: list[list[Cell]] = [
        [each.site, each.function, blocks.number(each.n_operators), blocks.seconds(each.host_s),
         blocks.seconds(each.device_s), each.top_operator, blocks.number(each.top_n)]
        for each in record.code_sites
    ]  # fmt: skip
    heads = ["line", "function", "operators", "host", "device", "called most", "times"]
    yield blocks.table("Your code", heads, rows, key="code-sites")


def _counted_operators(profile: ModelProfile | None) -> Iterator[Block]:
    if profile is None or not profile.operators:
        return
    rows: list[list[Cell]] = [
        [each.name, each.dtype, blocks.number(each.calls), [model_rows.flops(each.flops), each.flops],
         blocks.size(each.n_bytes), blocks.number(intensity(each.flops, each.n_bytes) if each.flops else None),
         blocks.seconds(each.total_s), model_rows.bound_name(each.bound or "")]
        for each in profile.operators
    ]  # fmt: skip
    heads = ["operator", "dtype", "calls", "FLOPs", "bytes", "FLOP/B", "time", "bound"]
    about = "one step, forward and backward, counted without the profiler"
    yield blocks.table("Arithmetic by operator", heads, rows, about, "counted-operators")


def kernels(record: TraceRecord | None) -> Iterator[Block]:
    """Kernels by name, by kind and by precision, and the gaps between them."""
    if record is None:
        yield blocks.note(NO_TRACE)
        return
    seen = record.kernels
    if seen is None or not seen.top:
        why = record.missing.get("kernels") or record.missing.get("device") or "the trace holds none"
        yield blocks.note(f"No kernels: {why}.")
        return
    yield blocks.facts(
        [
            ("Kernels", f"{record.n_kernels:,} in all, {wording.number(seen.n_per_step)} a step"),
            ("Median", wording.seconds(seen.median_s)),
            ("On matrix units", wording.share(seen.tensor_core_fraction) + " of the time of all kernels"
             if seen.tensor_core_fraction is not None else ""),
        ]
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [each.name, each.kind, blocks.number(each.n), blocks.seconds(each.total_s),
         blocks.seconds(each.total_s / each.n if each.n else None), blocks.share(each.share)]
        for each in seen.top
    ]  # fmt: skip
    yield blocks.table("Kernels", ["kernel", "kind", "launches", "time", "mean", "share"], rows, key="kernels")
    rows = [
        [name, blocks.number(kind.n), blocks.seconds(kind.total_s), blocks.share(kind.share)]
        for name, kind in sorted(seen.kinds.items(), key=lambda item: -item[1].total_s)
    ]
    yield blocks.table("By kind", ["kind", "launches", "time", "share"], rows, key="kinds")
    rows = [
        [name, blocks.seconds(spent), blocks.share(spent / seen.matrix_s if seen.matrix_s else None)]
        for name, spent in sorted(seen.matrix_precisions.items(), key=lambda item: -item[1])
    ]
    if rows:
        yield blocks.table("Matrix kernels by precision", ["precision", "time", "share"], rows, key="precisions")
    if record.idle is not None and record.idle.span_s:
        idle = record.idle
        rows = [
            [what, blocks.seconds(spent), blocks.share(spent / idle.span_s)]
            for what, spent in (
                ("the host was late", idle.host_wait_s),
                ("in the queue", idle.kernel_wait_s),
                ("otherwise", idle.other_s),
            )
        ]
        yield blocks.table("Gaps between kernels of the busiest stream", ["why", "time", "share"], rows, key="gaps")


def traffic(record: TraceRecord) -> Iterator[Block]:
    """What a trace tells of memory: calls that ask the driver for it, and copies."""
    if record.allocator is not None:
        told = record.allocator
        rows: list[list[Cell]] = [
            [call.name, blocks.number(call.n), blocks.seconds(call.total_s)] for call in told.calls
        ]
        about = f"{wording.count(told.n, 'call')}, {wording.seconds(told.exposed_s)} of it with the device idle"
        title = f"Memory from the driver: {wording.seconds(told.total_s)}"
        yield blocks.table(title, ["call", "n", "time"], rows, about, "allocator")
    copies = record.copies
    if copies is not None:
        rows = [
            ["to the device", blocks.number(copies.h2d_n), blocks.seconds(copies.h2d_s),
             blocks.seconds(copies.h2d_exposed_s), blocks.size(copies.h2d_bytes)],
            ["of it from pageable memory", blocks.number(copies.h2d_pageable_n), blocks.seconds(copies.h2d_pageable_s),
             blocks.seconds(copies.h2d_pageable_exposed_s), ["", None]],
            ["from the device", blocks.number(copies.d2h_n), blocks.seconds(copies.d2h_s),
             blocks.seconds(copies.d2h_exposed_s), blocks.size(copies.d2h_bytes)],
            ["inside the device", blocks.number(copies.d2d_n), blocks.seconds(copies.d2d_s), ["", None], ["", None]],
        ]  # fmt: skip
        yield blocks.table("Copies", ["", "n", "time", "with no kernel running", "bytes"], rows, key="copies")
        rows = [
            [each.site, {"h2d": "to the device", "d2h": "from the device"}.get(each.direction, each.direction),
             blocks.number(each.n), blocks.seconds(each.total_s), "pageable" if each.is_pageable else "pinned"]
            for each in copies.sites
        ]  # fmt: skip
        if rows:
            yield blocks.table("Where they are made", ["where", "direction", "n", "time", "memory"], rows, key="sites")
    if record.device is not None and record.device.memory_bytes:
        yield blocks.facts([("Memory of the device", wording.size(record.device.memory_bytes))])


def modules(profile: ModelProfile) -> Iterator[Block]:
    """What each module costs and what limits it."""
    rows: list[list[Cell]] = []
    for each in profile.modules:
        counted_flops, counted_bytes = work_of(each)
        is_counted = each.forward_flops is not None or each.backward_flops is not None
        n_flops, n_bytes = counted_flops if is_counted else None, counted_bytes or None
        taken_s = module_s(each)
        rows.append(
            [each.path or "outside modules", each.class_name, blocks.number(each.n_parameters),
             [model_rows.flops(n_flops), n_flops], blocks.size(n_bytes), blocks.number(intensity(n_flops, n_bytes)),
             blocks.seconds(each.forward_s), blocks.seconds(each.backward_s), blocks.seconds(taken_s),
             model_rows.bound_name(each.bound or ""), each.advice]
        )  # fmt: skip
    heads = ["module", "type", "parameters", "FLOPs", "bytes", "FLOP/B", "forward", "backward", "together", "bound",
             "what would help"]  # fmt: skip
    about = "one step, forward and backward; a module's figures leave out the modules listed inside it"
    yield blocks.table("Modules", heads, rows, about, "modules")
