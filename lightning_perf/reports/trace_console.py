"""What a trace says, as plain text for a terminal and as markdown. Both are drawn from the same sections."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from lightning_perf.records import Finding, TraceRecord, TraceStep

from . import trace_rank_rows, wording
from .markdown import escape

WIDTH = 100
N_ROWS = 6
BAR_WIDTH = 24
# What takes less than this is not worth a line.
LEAST_SHARE = 0.002
# Up to so many traces each is told in full.
N_IN_FULL = trace_rank_rows.N_ALL
N_OVERVIEW = 16

CAUSES = {
    "loader": "waiting for data",
    "sync": "waiting for the device",
    "pageable_copy": "copies from pageable memory",
    "transfer": "copies to the device",
    "device_to_host": "copies from the device",
    "allocator": "memory from the driver",
    "communication": "exposed communication",
    "launch": "late launches",
}


class Section(NamedTuple):
    """A heading, and rows of cells; a section of one column is running text."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def to_console(records: Sequence[TraceRecord]) -> str:
    """Traces as text of at most 100 columns."""
    parts = ["\n".join(_console_section(section)) for section in _together(records)]
    for record in _told_in_full(records):
        lines = [_title(record)]
        for section in sections(record):
            lines.extend(("", *_console_section(section)))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def to_markdown(records: Sequence[TraceRecord]) -> str:
    """Traces as markdown; foreign text is shown as it is, never read as markup."""
    parts = [part for section in _together(records) for part in _markdown_section(section)]
    for record in _told_in_full(records):
        parts.append(f"## {escape(_title(record))}")
        for section in sections(record):
            parts.extend(_markdown_section(section))
    return "\n\n".join(parts) + "\n"


def _console_section(section: Section) -> list[str]:
    if not section.heads:
        return [section.title, *(line for row in section.rows for line in _wrapped(row[0]))]
    cells = [section.heads, *section.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(section.heads))]
    lines = [section.title]
    for row in cells:
        padded = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append(("  " + "  ".join(padded)).rstrip())
    return lines


def _wrapped(text: str) -> list[str]:
    """Running text as lines of the terminal; what it begins with stays where it is."""
    indent = " " * (2 + len(text) - len(text.lstrip(" ")))
    lines = textwrap.wrap(
        wording.line(text, 600),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def _markdown_section(section: Section) -> list[str]:
    if not section.heads:
        return [f"### {escape(section.title)}", "\n".join(_item(row[0]) for row in section.rows)]
    table = [
        "| " + " | ".join(section.heads) + " |",
        "|" + "|".join([":--", *["--:"] * (len(section.heads) - 1)]) + "|",
    ]
    table.extend("| " + " | ".join(escape(cell.strip()) for cell in row) + " |" for row in section.rows)
    return [f"### {escape(section.title)}", "\n".join(table)]


def _item(text: str) -> str:
    """A line of running text as an item of a list, below the one before where it is indented."""
    depth = (len(text) - len(text.lstrip(" "))) // 4 * 2
    return f"{' ' * depth}- {escape(wording.line(text, 400))}"


def _name(text: str, limit: int = 52) -> str:
    return wording.cut(wording.line(text), limit)


def _title(record: TraceRecord) -> str:
    rank = f" · rank {record.rank}" + (f" of {record.world_size}" if record.world_size else "")
    steps = wording.count(len(record.steps), "step") if record.steps else f"no steps, {wording.seconds(record.span_s)}"
    return wording.line(
        f"{record.source} · {record.device_name or 'no device'} · {steps} · {record.n_events:,} events"
        + (rank if record.rank is not None else "")
    )


def sections(record: TraceRecord) -> Iterator[Section]:
    """What a trace says, section by section."""
    windows = record.windows
    if record.verdict:
        yield Section("Verdict", (), [(record.verdict.text,)])
    if record.findings:
        yield Section("Findings", (), [(line,) for finding in record.findings for line in _finding(finding)])
    if windows:
        yield _where_the_time_went(record, windows)
    predictions = [each for each in record.what_if if each.step_s - each.low_s >= LEAST_SHARE * 5 * each.step_s]
    if predictions:
        word = "step" if record.steps else "span"
        yield Section(
            f"What a {word} would take without each (they share time: gains do not add up)",
            ("without", "at best", "at least", "speed-up"),
            [
                (
                    CAUSES.get(each.cause, each.cause), wording.seconds(each.low_s), wording.seconds(each.high_s),
                    f"{each.step_s / each.high_s:.2f}–{each.step_s / each.low_s:.2f}×" if each.low_s else "",
                )
                for each in predictions[:N_ROWS]
            ],
        )  # fmt: skip
    facts = list(trace_facts(record))
    if facts:
        yield Section("Facts", (), [(fact,) for fact in facts])
    if record.syncs and record.syncs.sites:
        yield Section(
            "Waits for the device",
            ("where", "call", "n", "host waited", "device lost"),
            [
                (
                    _site(site.site, site.function), _name(site.call, 28), f"{site.n:,}", wording.seconds(site.wait_s),
                    "" if site.idle_after_s is None else wording.seconds(site.idle_after_s),
                )
                for site in record.syncs.sites[:N_ROWS]
            ],
        )  # fmt: skip
    if record.communication and record.communication.collectives:
        yield Section(
            "Collectives, waiting for other ranks included",
            trace_rank_rows.COLLECTIVE_HEADS,
            trace_rank_rows.collective_rows(record.communication.collectives),
        )
    if record.kernels and record.kernels.top:
        yield Section(
            "Kernels",
            ("name", "kind", "n", "time", "share"),
            [
                (
                    _name(wording.kernel_name(each.name)),
                    each.kind,
                    f"{each.n:,}",
                    wording.seconds(each.total_s),
                    wording.share(each.share),
                )
                for each in record.kernels.top[:N_ROWS]
            ],
        )
    if record.operators:
        yield Section(
            "Operators",
            ("name", "calls", "host, own", "device, own"),
            [
                (
                    _name(each.name), f"{each.calls:,}", wording.seconds(each.host_self_s),
                    wording.seconds(each.device_self_s) if record.device else "",
                )
                for each in record.operators[:N_ROWS]
            ],
        )  # fmt: skip
    if record.code_sites:
        yield Section(
            "Your code",
            ("function", "operators", "host", "device", "called most"),
            [
                (
                    _site(each.site, each.function), f"{each.n_operators:,}", wording.seconds(each.host_s),
                    wording.seconds(each.device_s) if record.device else "",
                    f"{_name(each.top_operator, 24)} {each.top_n:,} times",
                )
                for each in record.code_sites[:N_ROWS]
            ],
        )  # fmt: skip
    if record.missing:
        yield Section("Not told", (), [(f"{key}: {reason}",) for key, reason in record.missing.items()])


def _finding(finding: Finding) -> Iterator[str]:
    """What was found, what to expect of mending it, and how."""
    expected = wording.gain(finding.gain)
    yield (
        f"{finding.code} {finding.name} ({finding.severity}{f', {expected} faster' if expected else ''}): "
        f"{finding.summary}"
    )
    for prescription in finding.prescriptions:
        yield f"    fix: {prescription.summary} ({prescription.safety}, {prescription.effort})"
        yield from (f"        {line}" for line in wording.block(prescription.code))


def _where_the_time_went(record: TraceRecord, windows: Sequence[TraceStep]) -> Section:
    durations = [window.duration_s for window in windows]
    n = len(windows)
    total = sum(durations) or 1.0
    busy = [window.busy_fraction for window in windows if window.busy_fraction is not None]
    title = (
        f"A step takes {wording.seconds(fmean(durations))}"
        if n == 1 and record.steps
        else f"A step takes {wording.seconds(fmean(durations))} (median {wording.seconds(median(durations))}, "
        f"longest {wording.seconds(max(durations))})"
        if record.steps
        else f"The trace takes {wording.seconds(total)}"
    )
    if busy:
        title += f"; the device is busy {wording.share(sum(w.device_busy_s or 0.0 for w in windows) / total)} of it"
    rows = []
    for category in windows[0].categories:
        spent = sum(window.categories.get(category, 0.0) for window in windows)
        if spent >= LEAST_SHARE * total:
            bar = "█" * min(BAR_WIDTH, max(1, round(BAR_WIDTH * spent / total)))
            rows.append((category.replace("_", " "), wording.seconds(spent / n), wording.share(spent / total), bar))
    rows = [(name, time, share, bar.ljust(BAR_WIDTH)) for name, time, share, bar in rows]
    return Section(title, ("", "mean", "share", " " * BAR_WIDTH), rows)


def trace_facts(record: TraceRecord) -> Iterator[str]:
    """What a trace says beside its tables, a sentence each."""
    s = wording.seconds
    if record.loader:
        loader = record.loader
        fetches = f"{loader.n:,} fetches" if loader.n != 1 else "1 fetch"
        yield (
            f"loader: {fetches}, {s(loader.total_s)} in all, {s(loader.exposed_s)} of it with the device idle; "
            f"median {s(loader.p50_s)}, longest {s(loader.max_s)}"
        )
    if record.idle and record.idle.span_s:
        idle = record.idle
        yield (
            f"between kernels: {s(idle.host_wait_s)} because the host was late, {s(idle.kernel_wait_s)} in the queue, "
            f"{s(idle.other_s)} otherwise"
        )
    if record.copies and (record.copies.h2d_n or record.copies.d2h_n):
        copies = record.copies
        yield (
            f"copies: {copies.h2d_n:,} to the device in {s(copies.h2d_s)} ({copies.h2d_pageable_n:,} from pageable "
            f"memory, {s(copies.h2d_exposed_s)} with no kernel running), {copies.d2h_n:,} back in {s(copies.d2h_s)}"
        )
    if record.communication:
        communication = record.communication
        waiting = communication.waiting_s
        yield (
            f"communication: {communication.n_per_step:,.0f} collectives a step, {s(communication.total_s)} in all, "
            f"{s(communication.exposed_s)} of it not hidden"
            + ("" if waiting is None else f", of which {s(waiting)} waiting for later ranks")
        )
        for shard in communication.shards:
            when = "between phases" if shard.phase == "other" else f"in {shard.phase}"
            kind = shard.kind.replace("_", "-")
            yield (
                f"{kind}s {when}: {shard.n:,} in {s(shard.total_s)}, {s(shard.exposed_s)} of it "
                f"not hidden; {shard.hidden_n:,} of them done ahead of need"
            )
    if record.kernels and record.kernels.median_s is not None:
        kernels = record.kernels
        matrix = kernels.matrix_tensor_core_fraction
        yield (
            f"kernels: {kernels.n_per_step:,.0f} a step, median {s(kernels.median_s)}"
            + (f"; {wording.share(matrix)} of matrix time on matrix units" if matrix is not None else "")
        )
    if record.allocator and record.allocator.total_s > LEAST_SHARE * record.span_s:
        yield f"memory from the driver: {record.allocator.n:,} calls, {s(record.allocator.total_s)}"
    if record.startup and record.startup.calls:
        yield f"start-up: {s(record.startup.total_s)} of one-off calls, {_name(record.startup.calls[0].name)} first"
    if record.attention:
        place = f" at {record.attention.site}" if record.attention.site else ""
        yield (
            f"attention written out{place}: {record.attention.n:,} times, "
            f"{wording.share(record.attention.share)} of the {'device' if record.device else 'operator'} time"
        )
    if record.phases:
        device = " (device: {})"
        yield "phases: " + ", ".join(
            f"{phase.name.replace('_', ' ')} {s(phase.host_s)}"
            + (device.format(s(phase.device_s)) if record.device else "")
            for phase in record.phases
        )


def _site(site: str, function: str) -> str:
    # The end of a path tells more than its start.
    short = site if len(site) <= 40 else "…" + site[-39:]
    return wording.line(f"{short} {function}".strip())


def _together(records: Sequence[TraceRecord]) -> list[Section]:
    """What several traces say beside one another; nothing for one."""
    if len(records) < 2:
        return []
    sections = [_overview(records)]
    for record in records:
        if record.ranks is not None:
            ranks = record.ranks
            sections.append(
                Section(trace_rank_rows.rank_title(ranks), trace_rank_rows.RANK_HEADS, trace_rank_rows.rank_rows(ranks))
            )
            if ranks.collectives:
                title = "Collectives from the last rank's arrival on"
                sections.append(
                    Section(title, trace_rank_rows.COLLECTIVE_HEADS, trace_rank_rows.collective_rows(ranks.collectives))
                )
    return sections


def _told_in_full(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    """All traces where they are few; of many ranks the first, and those that hold others up most."""
    if len(records) <= N_IN_FULL:
        return list(records)
    slow = {trace_rank_rows.straggler(record.ranks).source for record in records if record.ranks is not None}
    return [record for i, record in enumerate(records) if i == 0 or record.source in slow or record.ranks is not None]


def _overview(records: Sequence[TraceRecord]) -> Section:
    shown = records[:N_OVERVIEW]
    rows = []
    for record in shown:
        windows = record.windows
        total = sum(window.duration_s for window in windows) or 1.0
        busy = sum(window.device_busy_s or 0.0 for window in windows) / total if record.device else None
        exposed = record.communication.exposed_s / total if record.communication else None
        rows.append(
            (
                _name(record.source, 44), "" if record.rank is None else str(record.rank), str(len(record.steps)),
                wording.seconds(total / max(len(windows), 1)), wording.share(busy), wording.share(exposed),
            )
        )  # fmt: skip
    more = f", the first {len(shown)}" if len(shown) < len(records) else ""
    return Section(
        f"{len(records)} traces{more}", ("trace", "rank", "steps", "step", "busy", "exposed communication"), rows
    )
