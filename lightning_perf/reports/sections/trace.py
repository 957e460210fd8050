"""Tables of a profiler trace: time by category, what-if, waits, collectives, kernels, operators, copies."""

from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from lightning_perf.records import CollectiveTime, Kernels, TraceRank, TraceRanks, TraceRecord
from lightning_perf.reports import wording
from lightning_perf.reports.cells import PAGE, TAB, Cell, Column, Heads, Rows, Value, number, seconds, share, size
from lightning_perf.reports.document import AnyPart, Document, Table, pairs, section, table

from .findings import diagnosis
from .verdict import verdict_of_trace

_N_ROWS = 6
_N_CHARS = 52
_N_RANKS = 8
"""Traces and ranks up to this many are all shown."""
_N_OVERVIEW = 16
_LEAST_SHARE = 0.002
_LEAST_GAIN = 0.01

CAUSES = {
    "loader": "data wait",
    "sync": "synchronization",
    "pageable_copy": "copies from pageable memory",
    "transfer": "host-to-device copies",
    "device_to_host": "device-to-host copies",
    "allocator": "allocations from the driver",
    "communication": "exposed communication",
    "launch": "launch latency",
}


def trace_documents(records: Sequence[TraceRecord]) -> list[Document]:
    """Return a document for each trace, after one that compares them if there are several."""
    documents = [Document(None, (), (section("together", "", trace_ranks_parts(records)),))] if len(records) > 1 else []
    return documents + [trace_document(record) for record in _shown_in_full(records)]


def trace_document(record: TraceRecord) -> Document:
    """Return the full report of one trace."""
    return Document(
        verdict_of_trace(record),
        (),
        (section("findings", "Findings", map(diagnosis, record.findings), is_short=True),
         section("trace", "", trace_parts(record))),
        title=_title(record),
    )  # fmt: skip


def trace_parts(record: TraceRecord) -> Iterator[AnyPart]:
    """Yield the tables and facts of one trace, without its findings."""
    yield categories_table(record)
    yield from detail_parts(record)


def detail_parts(record: TraceRecord) -> Iterator[AnyPart]:
    """Yield everything except the time by category and the findings."""
    yield what_if_table(record)
    yield pairs(trace_facts(record))
    yield _syncs_table(record)
    if record.communication is not None:
        title = "Collectives, including waits for other ranks"
        yield _collectives_table(record.communication.collectives, title)
    yield from kernel_parts(record)
    yield from operator_parts(record)
    yield from copy_parts(record)
    yield steps_table(record)
    rows: Rows = list(record.missing.items())
    yield table(("what", "reason"), rows, title="Not in this trace", key="missing-in-trace", is_folded=True)


def trace_facts(record: TraceRecord) -> list[tuple[str, str]]:
    """Return single facts by label."""
    s, per = wording.seconds, "per step" if record.steps else "in the trace"
    texts: dict[str, str] = {}
    if record.loader:
        batches, spent = wording.count(record.loader.n, "batch"), record.loader
        texts["loader"] = f"{batches} in {s(spent.total_s)} (p50 {s(spent.p50_s)}, max {s(spent.max_s)})"
        texts["loader"] += f", {s(spent.exposed_s)} of it with the device idle"
    if record.idle and record.idle.span_s:
        host_s, queue_s, other_s = map(s, (record.idle.host_wait_s, record.idle.kernel_wait_s, record.idle.other_s))
        texts["gaps"] = f"between kernels: {host_s} launch latency, {queue_s} kernel queue, {other_s} other"
    if record.copies and (record.copies.h2d_n or record.copies.d2h_n):
        each = record.copies
        pageable = f"{each.h2d_pageable_n:,} from pageable memory, {s(each.h2d_exposed_s)} exposed"
        texts["copies"] = f"{each.h2d_n:,} host to device in {s(each.h2d_s)} ({pageable})"
        texts["copies"] += f", {each.d2h_n:,} device to host in {s(each.d2h_s)}"
    if record.communication:
        net = record.communication
        late = "" if net.waiting_s is None else f", {s(net.waiting_s)} of that waiting for other ranks"
        collectives = f"{net.n_per_step:,.0f} collectives {per}"
        texts["communication"] = f"{collectives}, {s(net.total_s)}, {s(net.exposed_s)} exposed{late}"
        for shard in net.shards:
            when = "between phases" if shard.phase == "other" else f"in {shard.phase}"
            spent_s = f"{shard.n:,} in {s(shard.total_s)}, {s(shard.exposed_s)} exposed"
            texts[f"{shard.kind.replace('_', '-')} {when}"] = f"{spent_s}; {shard.hidden_n:,} prefetched"
    if record.kernels and record.kernels.median_s is not None:
        matrix = record.kernels.matrix_tensor_core_fraction
        cores = f"; {wording.share(matrix)} of matrix time on tensor cores" if matrix is not None else ""
        texts["kernels"] = f"{record.kernels.n_per_step:,.0f} {per}, p50 {s(record.kernels.median_s)}{cores}"
    if record.allocator and record.allocator.total_s > _LEAST_SHARE * record.span_s:
        texts["allocations"] = f"{record.allocator.n:,} calls of the driver, {s(record.allocator.total_s)}"
    if record.startup and record.startup.calls:
        texts["startup"] = f"{s(record.startup.total_s)} of one-off calls, mostly {record.startup.calls[0].name}"
    if record.attention:
        place = f" at {record.attention.site}" if record.attention.site else ""
        part = f"{wording.share(record.attention.share)} of {'device' if record.device else 'operator'} time"
        texts["attention"] = f"unfused{place}, {record.attention.n:,} times, {part}"
    phases = [(wording.phase_name(each.name), s(each.host_s), s(each.device_s)) for each in record.phases]
    on_device = record.device is not None
    texts["phases"] = ", ".join(
        f"{n} {host}" + (f" (device {device})" if on_device else "") for n, host, device in phases
    )
    return list(texts.items())


def categories_table(record: TraceRecord) -> Table:
    """Return the time of a step by category."""
    windows = record.windows
    n, total = max(1, len(windows)), sum(window.duration_s for window in windows) or 1.0
    spent = {name: sum(window.categories.get(name, 0.0) for window in windows)
             for name in (windows[0].categories if windows else ())}  # fmt: skip
    spent = {name: s for name, s in spent.items() if s >= _LEAST_SHARE * total}
    rows: Rows = [(name.replace("_", " "), seconds(s / n), share(s / total)) for name, s in spent.items()]
    heads: Heads = ("category", "mean", "share")
    about = "each moment counts for the first category that applies, from the top"
    return table(heads, rows, title=_time_title(record), about=about, key="categories", bars="share", full=1.0)


def _time_title(record: TraceRecord) -> str:
    windows = record.windows
    if not windows:
        return ""
    durations = [window.duration_s for window in windows]
    total = sum(durations)
    title = f"Time of the trace: {wording.seconds(total)}"
    if record.steps:
        title = f"Time per step: {wording.seconds(total / len(durations))}"
        if len(windows) > 1:
            title += f" (p50 {wording.seconds(median(durations))}, max {wording.seconds(max(durations))})"
    if total > 0 and any(window.busy_fraction is not None for window in windows):
        title += f", device busy {wording.share(sum(w.device_busy_s or 0.0 for w in windows) / total)}"
    return title


def what_if_table(record: TraceRecord) -> Table:
    """Return the step time without each cause."""
    rows: Rows = [
        (CAUSES.get(each.cause, each.cause), seconds(each.step_s), seconds(each.low_s), seconds(each.high_s),
         Value(f"{each.step_s / each.high_s:.2f}–{each.step_s / each.low_s:.2f}x", each.step_s / each.low_s)
         if each.low_s and each.high_s else Value(""), seconds(each.claim_s))
        for each in record.what_if
        if each.step_s - each.low_s >= _LEAST_GAIN * each.step_s
    ]  # fmt: skip
    heads: Heads = ("without", "now", "at best", "at least", "speedup", Column("exclusive, total", TAB))
    about = "causes share time: speedups do not add up"
    title = f"Predicted {'step' if record.steps else 'trace'} time without each cause"
    return table(heads, rows, title=title, about=about, key="what-if", n_brief=_N_ROWS, is_folded=True)


def steps_table(record: TraceRecord) -> Table:
    """Return each step of the trace."""
    rows: Rows = [
        (step.name, seconds(step.duration_s), seconds(step.device_busy_s), share(step.busy_fraction),
         seconds(step.loader_s), seconds(step.loader_exposed_s), number(step.n_kernels), number(step.n_operators))
        for step in record.steps
    ]  # fmt: skip
    heads: Heads = ("step", "duration", "device busy", "busy", "data wait", "exposed", "kernels", "operators")
    return table(heads, rows, title="Steps", key="steps", min_width=TAB)


def _syncs_table(record: TraceRecord) -> Table:
    rows: Rows = [
        (_site(site.site, site.function), site.call, number(site.n), seconds(site.wait_s), seconds(site.idle_after_s))
        for site in (record.syncs.sites if record.syncs else ())
    ]
    heads: Heads = ("line", "call", "n", "host waited", "device idle after")
    return table(heads, rows, title="Synchronization", key="trace-syncs", n_brief=_N_ROWS, n_chars=_N_CHARS,
                 is_folded=True)  # fmt: skip


def _collectives_table(collectives: Sequence[CollectiveTime], title: str) -> Table:
    rows: Rows = [
        (each.kind.replace("_", "-"), size(each.mean_bytes), number(each.group_size), number(each.n),
         seconds(each.median_s), seconds(each.exposed_s), _bandwidth(each.bus_bytes_per_s))
        for each in collectives
    ]  # fmt: skip
    heads: Heads = ("kind", "size", "ranks", "n", "p50", "exposed", "bus bandwidth")
    return table(heads, rows, title=title, key="collectives", n_brief=_N_ROWS, is_folded=True)


def kernel_parts(record: TraceRecord) -> Iterator[AnyPart]:
    """Yield kernels by name, kind and precision, and the gaps between them."""
    seen, idle = record.kernels, record.idle
    if seen is not None:
        rows: Rows = [
            (wording.kernel_name(each.name), each.kind, number(each.n), seconds(each.total_s),
             seconds(each.total_s / each.n if each.n else None), share(each.share), share(each.occupancy),
             number(each.blocks_per_sm))
            for each in seen.top
        ]  # fmt: skip
        heads: Heads = ("kernel", "kind", "n", "time", Column("mean", TAB), "share", Column("occupancy", TAB),
                 Column("blocks per SM", TAB))  # fmt: skip
        yield table(heads, rows, title="Kernels", about=_occupancy(seen), key="kernels", n_brief=_N_ROWS,
                    n_chars=_N_CHARS, bars="time", bars_min_width=PAGE)  # fmt: skip
        kinds = [(name, number(kind.n), seconds(kind.total_s), share(kind.share))
                 for name, kind in sorted(seen.kinds.items(), key=lambda item: -item[1].total_s)]  # fmt: skip
        yield table(("kind", "n", "time", "share"), kinds, title="Kernels by kind", key="kinds", min_width=TAB)
        precisions = [(name, seconds(s), share(s / seen.matrix_s if seen.matrix_s else None))
                      for name, s in sorted(seen.matrix_precisions.items(), key=lambda item: -item[1])]  # fmt: skip
        heads = ("precision", "time", "share")
        yield table(heads, precisions, title="Matrix kernels by precision", key="precisions", min_width=TAB)
    if idle is not None and idle.span_s:
        causes = (("launch latency", idle.host_wait_s), ("kernel queue", idle.kernel_wait_s), ("other", idle.other_s))
        rows = [(what, seconds(spent), share(spent / idle.span_s)) for what, spent in causes]
        title = "Gaps between kernels of the busiest stream"
        yield table(("cause", "time", "share"), rows, title=title, key="gaps", min_width=TAB)


def _occupancy(kernels: Kernels) -> str:
    known = (("estimated achieved occupancy", kernels.occupancy), ("estimated SM efficiency", kernels.sm_efficiency))
    return ", ".join(f"{name} {wording.share(value)}" for name, value in known if value is not None)


def operator_parts(record: TraceRecord) -> Iterator[AnyPart]:
    """Yield operators, matrix shapes and lines of the user's code."""
    on_device = record.device is not None
    rows: Rows = [
        (each.name, number(each.calls), seconds(each.host_self_s), seconds(each.host_total_s),
         seconds(each.device_self_s if on_device else None), seconds(each.device_total_s if on_device else None))
        for each in record.operators
    ]  # fmt: skip
    heads: Heads = (
        "operator",
        "calls",
        "host self",
        Column("host total", TAB),
        "device self",
        Column("device total", TAB),
    )
    about = f"in {wording.seconds(record.span_s)} of the trace"
    yield table(heads, rows, title="Operators", about=about, key="operators", n_brief=_N_ROWS, n_chars=_N_CHARS,
                bars="device self" if on_device else "host self", bars_min_width=PAGE)  # fmt: skip
    yield _operator_memory_table(record)
    rows = [
        (each.operator, each.shapes, each.dtype, number(each.calls), seconds(each.host_s),
         seconds(each.device_s if on_device else None),
         "" if each.is_aligned is None or not on_device else "yes" if each.is_aligned else "no")
        for each in record.matrix_shapes
    ]  # fmt: skip
    heads = ("operator", "shapes", "dtype", "calls", "host", "device", "fits tensor cores")
    title = "Matrix multiplications and convolutions by shape"
    yield table(heads, rows, title=title, key="matrix-shapes", min_width=TAB)
    rows = [
        (_site(each.site, each.function), number(each.n_operators), seconds(each.host_s),
         seconds(each.device_s if on_device else None), each.top_operator, number(each.top_n))
        for each in record.code_sites
    ]  # fmt: skip
    heads = ("line", "operators", "host", "device", "most frequent", "calls")
    yield table(heads, rows, title="Your code", key="code-sites", n_brief=_N_ROWS, n_chars=_N_CHARS, is_folded=True)


def _operator_memory_table(record: TraceRecord) -> Table:
    n = max(1, len(record.steps))
    rows: Rows = [
        (each.name or "(outside operators)", number(each.n / n), size(each.device_bytes / n or None),
         size(each.host_bytes / n or None))
        for each in record.operator_memory
    ]  # fmt: skip
    heads: Heads = ("operator", "allocations", "device", "host")
    about = f"allocated {'per step' if record.steps else 'in the trace'}, freed or not"
    return table(heads, rows, title="Operators by memory", about=about, key="operator-memory", n_brief=_N_ROWS,
                 n_chars=_N_CHARS, is_folded=True)  # fmt: skip


def copy_parts(record: TraceRecord) -> Iterator[AnyPart]:
    """Yield allocations from the driver, and copies."""
    if record.allocator is not None:
        found = record.allocator
        rows: Rows = [(call.name, number(call.n), seconds(call.total_s)) for call in found.calls]
        about = f"{wording.count(found.n, 'call')}, {wording.seconds(found.exposed_s)} of it with the device idle"
        title = f"Allocations from the driver: {wording.seconds(found.total_s)}"
        yield table(("call", "n", "time"), rows, title=title, about=about, key="allocator", min_width=TAB)
    copies = record.copies
    if copies is not None:
        rows = [
            ("host to device", number(copies.h2d_n), seconds(copies.h2d_s), seconds(copies.h2d_exposed_s),
             size(copies.h2d_bytes)),
            ("from pageable memory", number(copies.h2d_pageable_n), seconds(copies.h2d_pageable_s),
             seconds(copies.h2d_pageable_exposed_s), size(None)),
            ("device to host", number(copies.d2h_n), seconds(copies.d2h_s), seconds(copies.d2h_exposed_s),
             size(copies.d2h_bytes)),
            ("device to device", number(copies.d2d_n), seconds(copies.d2d_s), seconds(None), size(None)),
        ]  # fmt: skip
        yield table(("direction", "n", "time", "exposed", "size"), rows, title="Copies", key="copies", min_width=TAB)
        rows = [
            (each.site, {"h2d": "host to device", "d2h": "device to host"}.get(each.direction, each.direction),
             number(each.n), seconds(each.total_s), "pageable" if each.is_pageable else "pinned")
            for each in copies.sites
        ]  # fmt: skip
        heads: Heads = ("line", "direction", "n", "time", "memory")
        yield table(heads, rows, title="Lines that copy", key="sites", min_width=TAB)


def trace_ranks_parts(records: Sequence[TraceRecord]) -> Iterator[AnyPart]:
    """Yield the traces side by side, and the ranks if the traces are of one run."""
    rows: Rows = []
    for record in records:
        windows, net = record.windows, record.communication
        total = sum(window.duration_s for window in windows)
        busy = sum(window.device_busy_s or 0.0 for window in windows) if record.device else None
        rows.append(
            (record.source, Value("" if record.rank is None else str(record.rank), record.rank),
             number(len(record.steps)), seconds(total / len(windows) if windows else None),
             share(busy / total if busy is not None and total else None), seconds(net.total_s if net else None),
             share(net.exposed_s / total if net and total else None), share(net.overlap_fraction if net else None))
        )  # fmt: skip
    heads: Heads = ("trace", "rank", "steps", "mean step", "device busy", Column("communication", TAB),
             "exposed communication", Column("overlap", TAB))  # fmt: skip
    more = f", the first {_N_OVERVIEW}" if len(records) > _N_OVERVIEW else ""
    yield table(heads, rows, title=f"{len(records)} traces{more}", key="traces", n_brief=_N_OVERVIEW, n_chars=_N_CHARS)
    for ranks in (record.ranks for record in records if record.ranks is not None):
        yield _ranks_table(ranks)
        yield _collectives_table(ranks.collectives, "Collectives, from the arrival of the last rank")


def _ranks_table(ranks: TraceRanks) -> Table:
    parts = sorted({name for one in ranks.ranks for name in one.parts_s})

    def row(name: str, one: TraceRank) -> tuple[Cell, ...]:
        spent = (seconds(one.parts_s.get(part)) for part in parts)
        return (Value(name, one.rank), seconds(one.step_s), seconds(one.own_s), *spent, seconds(one.waiting_s),
                share(one.straggler_share), share(one.last_fraction))  # fmt: skip

    rows: Rows = [row(str(one.rank), one) for one in ranks.ranks]
    if len(rows) > _N_RANKS:  # the slowest first, after the median of all
        slowest = sorted(ranks.ranks, key=lambda one: (-one.straggler_share, -one.own_s, one.rank))
        rows = [row("median", _median_rank(ranks, parts)), *(row(str(one.rank), one) for one in slowest)]
    heads: Heads = ("rank", Column("step", TAB), "own work", *parts, "waits", "others wait", "last to arrive")
    clocks = "" if ranks.clock_spread_s is None else f", clocks agree within {wording.seconds(ranks.clock_spread_s)}"
    title = (
        f"{len(ranks.ranks)} ranks, mean of {wording.count(ranks.n_steps, 'step')} "
        f"({wording.count(ranks.n_matched, 'collective')} matched{clocks})"
    )
    return table(heads, rows, title=title, key="together", n_brief=_N_RANKS)


def _median_rank(ranks: TraceRanks, parts: Sequence[str]) -> TraceRank:
    names = ("step_s", "own_s", "waiting_s", "straggler_share", "last_fraction")
    medians = {name: median(getattr(one, name) for one in ranks.ranks) for name in names}
    parts_s = {part: median(one.parts_s.get(part, 0.0) for one in ranks.ranks) for part in parts}
    return msgspec.structs.replace(ranks.ranks[0], rank=-1, parts_s=parts_s, **medians)


def _title(record: TraceRecord) -> str:
    steps = wording.count(len(record.steps), "step") if record.steps else f"no steps, {wording.seconds(record.span_s)}"
    device = record.device_name or ("unnamed device" if record.device else "no device")
    parts = [record.source, device, steps, f"{record.n_events:,} events"]
    if record.rank is not None:
        parts.append(f"rank {record.rank}" + (f" of {record.world_size}" if record.world_size else ""))
    return wording.line(" · ".join(parts))


def _site(site: str, function: str) -> str:
    # The end of a path identifies a file better than its start.
    short = site if len(site) <= 40 else "…" + site[-39:]
    return wording.line(f"{short} {function}".strip())


def _bandwidth(bytes_per_s: float | None) -> Value:
    """Return GB/s in powers of ten, as nccl-tests prints it."""
    if bytes_per_s is None:
        return Value("")
    return Value(
        f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s", bytes_per_s
    )


def _shown_in_full(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    """Return all traces if they are few; of many ranks the first and those that hold others up most."""
    if len(records) <= _N_RANKS:
        return list(records)
    slowest = (max(record.ranks.ranks, key=lambda one: (one.straggler_share, one.own_s))
               for record in records if record.ranks is not None)  # fmt: skip
    slow = {one.source for one in slowest}
    return [record for i, record in enumerate(records) if i == 0 or record.source in slow or record.ranks is not None]
