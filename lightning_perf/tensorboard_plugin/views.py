"""The views of the tab: what each shows of a run, as blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from lightning_perf.records import PHASES, Session
from lightning_perf.reports import (
    host_rows,
    loader_rows,
    memory_rows,
    model_rows,
    rank_rows,
    summary,
    trial_rows,
    wording,
)
from lightning_perf.reports.trace_console import trace_facts

from . import blocks, perfetto, tables
from .blocks import Block, Cell
from .library import Shown

INSTALL_PERFETTO = 'pip install "lightning-perf[trace]"'


TIMELINE_TITLE = "The longest events by thread and stream: drag to zoom in, click twice to see all"


class View(NamedTuple):
    """One view.

    Attributes:
        title: On its tab.
        draw: Gives its blocks.
    """

    title: str
    draw: Callable[[Shown], Iterator[Block]]


def overview(shown: Shown) -> Iterator[Block]:
    """The verdict, where the time went, and what to do about it."""
    session = shown.session
    severity = next((f.severity for f in session.findings if f.code == session.verdict.code), "")
    yield {
        "type": "verdict",
        "text": summary.verdict_text(session),
        "category": wording.line(session.verdict.category, 40),
        "severity": severity,
    }
    if shown.is_trace_only:
        yield from _overview_of_trace(shown)
        return
    yield blocks.facts(_run_facts(session))
    if session.steady is not None:
        yield blocks.figure("breakdown", summary.steady_title(session, session.steady))
    else:
        yield blocks.note(f"No steady steps: {session.missing.get('steady', 'too few were measured')}.")
    yield from findings(session)
    yield blocks.figure("findings", "What the fixes would win")
    yield blocks.figure("epochs", "Where the time of each epoch went")
    yield blocks.figure("timeline", "The step over the course of the run")
    yield from _stages(session)
    yield from _epochs(session)
    yield blocks.figure("startup", "Up to the end of the first step")
    if shown.trace is not None:
        yield from tables.categories(shown.trace)
    yield blocks.facts(summary.footer_facts(session, show_all=False))
    yield from _rules(session)


def findings(session: Session) -> Iterator[Block]:
    """What was found, worst first; that nothing was, otherwise."""
    ordered = summary.ordered_findings(session)
    yield blocks.heading("Findings" if ordered else "Findings: none")
    for one in ordered:
        yield blocks.finding(one)
    if not ordered:
        yield blocks.note(summary.rules_fact(session) or "No rule found anything to change.")


def operators(shown: Shown) -> Iterator[Block]:
    """Operators of a profiler window, and of the step whose arithmetic was counted."""
    yield blocks.figure("operators", "Operators")
    yield from tables.operators(shown.trace, shown.session.model_profile)


def kernels(shown: Shown) -> Iterator[Block]:
    """Kernels of a profiler window."""
    yield blocks.figure("kernels", "Kernels")
    yield from tables.kernels(shown.trace)


def memory(shown: Shown) -> Iterator[Block]:
    """What memory holds, when, and how it grows."""
    session = shown.session
    told = session.memory
    if not shown.is_trace_only:
        yield blocks.facts([("Peaks", summary.memory_fact(session))])
        rows: list[list[Cell]] = [
            [each.device, blocks.size(each.peak_allocated_bytes), blocks.size(each.peak_reserved_bytes),
             blocks.size(each.total_bytes), blocks.size(each.inactive_split_bytes), blocks.number(each.alloc_retries)]
            for each in told.devices
        ]  # fmt: skip
        if rows:
            heads = ["device", "peak allocated", "peak reserved", "of", "cannot be given back", "flushes of the cache"]
            yield blocks.table("Devices", heads, rows, key="devices")
        yield blocks.figure("memory_peak", "What memory holds")
        yield from _breakdown(session)
        for name, title in (
            ("memory_phases", "By phase of the step"),
            ("memory_growth", "Growth"),
            ("memory_before_oom", "Up to where it ran out"),
        ):
            yield blocks.figure(name, title)
        yield blocks.facts(
            [
                ("By phase", "; ".join(memory_rows.phase_facts(session))),
                ("Growth", "; ".join(memory_rows.growth_facts(session))),
                ("Batch", memory_rows.headroom_fact(told.headroom)),
            ]
        )
        if told.breakdown is None:
            why = session.missing.get("memory.breakdown", session.missing.get("memory", "it was not looked at"))
            yield blocks.note(f"What memory holds is not known: {why}.")
    if shown.trace is not None:
        yield from tables.traffic(shown.trace)


def modules(shown: Shown) -> Iterator[Block]:
    """What the model's arithmetic costs by module, against what the device can do."""
    profile = shown.session.model_profile
    if profile is None:
        why = shown.session.missing.get("model_profile", "no step was looked at")
        if shown.is_trace_only:
            why = "a trace does not say which module calls an operator"
        yield blocks.note(f"The arithmetic of the modules was not counted: {why}.")
        return
    yield blocks.heading(model_rows.title(profile))
    yield blocks.facts(
        [
            ("Model", " · ".join(model_rows.facts(profile))),
            ("Used", " · ".join(model_rows.utilisation_facts(profile.utilisation))),
            ("Bound", " · ".join(model_rows.bound_facts(profile))),
        ]
    )
    yield blocks.figure("roofline", "Roofline")
    yield blocks.figure("modules", "Modules")
    yield from tables.modules(profile)


def ranks(shown: Shown) -> Iterator[Block]:
    """The ranks beside one another."""
    told = shown.session.ranks
    if told is None or len(told.summaries) < 2:
        n = shown.session.run.world_size
        yield blocks.note("This run had one rank." if n < 2 else f"Of {n} ranks only one has reported.")
    if told is None:
        return
    yield blocks.heading(rank_rows.rank_title(told))
    yield blocks.figure("ranks", "Ranks")
    yield blocks.facts([("Spread", "; ".join(rank_rows.rank_facts(told)))])
    rows: list[list[Cell]] = [
        [[str(one.rank), one.rank], one.node, blocks.number(one.n_steps), blocks.seconds(one.step_s),
         blocks.seconds(one.own_s), *(blocks.seconds(one.parts_s.get(part)) for part in ("data", "compute", "host")),
         blocks.seconds(one.waiting_s), blocks.share(one.wait_share), one.slowest_name or "",
         blocks.number(one.n_batches), blocks.size(one.peak_bytes)]
        for one in told.summaries
    ]  # fmt: skip
    heads = ["rank", "machine", "steps", "step", "own", "data", "compute", "host", "waits for others",
             "waits for data", "slowest callback", "batches", "peak memory"]  # fmt: skip
    yield blocks.table("Mean of a step", heads, rows, key="ranks")
    if told.missing:
        rows = [[[str(one.rank), one.rank], one.reason] for one in told.missing]
        yield blocks.table("Ranks that did not report", ["rank", "why"], rows, key="missing-ranks")


def trials(shown: Shown) -> Iterator[Block]:
    """What was tried and what it gained."""
    if not shown.session.trials:
        yield blocks.note("No trial was made of this training. To measure what a fix gains:")
        yield blocks.code(["lightning-perf trial -- python train.py"])
        return
    yield blocks.figure("trials", "What trials measured")
    for trial in shown.session.trials:
        yield blocks.heading(trial_rows.trial_title(trial))
        yield blocks.note(trial_rows.headline(trial))
        yield blocks.facts([("How", " · ".join(trial_rows.trial_facts(trial)))])
        for title, ladder in (
            ("Ladder", trial_rows.ladder_rows(trial)),
            ("Each by itself", trial_rows.alone_rows(trial)),
        ):
            if ladder:
                yield blocks.table(title, trial_rows.HEADS, ladder, key=title.lower().replace(" ", "-"))
        yield blocks.facts([("Batch size", trial_rows.batch_fact(trial))])
        left_out = trial_rows.left_out(trial)
        if left_out:
            yield blocks.table("Left out", ["treatment", "why"], left_out, key="left-out")
        for label, _, lines in trial_rows.pasted(trial):
            yield blocks.code(lines, label)


def data_and_host(shown: Shown) -> Iterator[Block]:
    """The loader taken apart, and what the host does in a step."""
    session = shown.session
    if session.loader_probe is not None:
        probe = session.loader_probe
        yield blocks.heading(loader_rows.loader_title(probe))
        yield blocks.facts([("Ceilings", " · ".join(loader_rows.ceiling_facts(session))),
                            ("A sample", " · ".join(loader_rows.sample_facts(probe)))])  # fmt: skip
        yield blocks.figure("loader_curve", "The loader by its workers")
        rows: list[list[Cell]] = [
            [each.name, f"{each.file}:{each.line}" if each.file else "", each.where, blocks.share(each.blamed_share),
             blocks.share(each.share), blocks.share(each.own_share)]
            for each in probe.functions
        ]  # fmt: skip
        heads = ["function", "line", "in", "the user's share", "with what it calls", "its own"]
        yield blocks.table("Functions that samples spend their time in", heads, rows, key="functions")
    else:
        yield blocks.note("The loader was not probed. To take it apart:")
        yield blocks.code(["lightning-perf data -- python train.py", "PerfDoctor(probe_data=True)"])
    if session.sync_calls is not None:
        found = host_rows.sync_rows(session.sync_calls)
        title = host_rows.sync_title(session.sync_calls)
        yield blocks.table(title, host_rows.SYNC_HEADS, found, host_rows.sync_note(session.sync_calls), "syncs")
    if session.compiler is not None:
        yield blocks.heading(host_rows.compiler_title(session.compiler))
        yield blocks.facts([("Compiler", " · ".join(host_rows.compiler_facts(session.compiler)))])
        found = host_rows.compiler_rows(session.compiler)
        if found:
            yield blocks.table("Compiled again, and broken graphs", host_rows.COMPILER_HEADS, found, key="compiler")
    yield blocks.facts([("Host", " · ".join(host_rows.host_facts(session)))])
    yield from _named(session)


def trace(shown: Shown) -> Iterator[Block]:
    """The trace itself in Perfetto where that is installed; its steps in any case."""
    if shown.trace is None:
        yield blocks.note(tables.NO_TRACE)
        return
    if shown.file is None:
        yield blocks.note("The trace's file is not on this machine: this is what its record tells.")
    elif perfetto.folder() is None:
        yield blocks.note("To look at every event here, install Perfetto's viewer and start TensorBoard again:")
        yield blocks.code([INSTALL_PERFETTO])
        yield blocks.figure("trace_events", TIMELINE_TITLE)
    else:
        yield {"type": "perfetto", "file": wording.line(shown.trace.source, 200)}
    yield blocks.figure("trace_steps", "Steps by what they spend their time on")
    yield from tables.steps(shown.trace)
    yield from tables.categories(shown.trace)


VIEWS: dict[str, View] = {
    "overview": View("Overview", overview),
    "operators": View("Operators", operators),
    "kernels": View("Kernels", kernels),
    "memory": View("Memory", memory),
    "modules": View("Modules", modules),
    "data": View("Data and host", data_and_host),
    "ranks": View("Ranks", ranks),
    "trials": View("Trials", trials),
    "trace": View("Trace", trace),
}
"""By name, in the order of the tabs; Diff, which needs two runs, has a route of its own."""


def _run_facts(session: Session) -> Iterable[tuple[str, str]]:
    yield "Run", " · ".join(summary.run_facts(session))
    if session.steady is not None:
        yield "Speed", " · ".join(summary.rate_facts(session.steady, summary.step_word(session)))
        yield "Device", summary.device_fact(session.steady)


def _overview_of_trace(shown: Shown) -> Iterator[Block]:
    trace = shown.trace
    assert trace is not None
    yield blocks.facts(
        [
            ("Trace", trace.source),
            ("Device", trace.device_name or trace.missing.get("device", "")),
            ("Rank", "" if trace.rank is None else f"{trace.rank} of {trace.world_size or 'unknown'}"),
            ("Events", f"{trace.n_events:,}, of these {trace.n_kernels:,} kernels"),
        ]
    )
    yield blocks.figure("trace_steps", "Steps by what they spend their time on")
    yield from tables.categories(trace)
    yield from findings(shown.session)
    yield from tables.what_if(trace)
    told = [fact.partition(": ") for fact in trace_facts(trace)]
    yield blocks.facts([(what[:1].upper() + what[1:], rest) for what, _, rest in told])
    yield from tables.steps(trace)
    if trace.missing:
        yield blocks.table("Not told by this trace", ["what", "why"], list(trace.missing.items()), key="not-told")


def _stages(session: Session) -> Iterator[Block]:
    for stage, title, word, key in (
        (session.steady, summary.steady_title, summary.step_word(session), "phases"),
        (session.validation, lambda _, validation: summary.validation_title(validation), "batch", "validation-phases"),
    ):
        if stage is None:
            continue
        rows: list[list[Cell]] = [
            [wording.phase_name(name), blocks.share(phase.share), blocks.seconds(phase.total_s),
             blocks.seconds(phase.p50_s), blocks.seconds(phase.p95_s)]
            for name, phase in sorted(stage.phases.items(), key=lambda item: -item[1].total_s)
        ]  # fmt: skip
        heads = ["phase", "share", "total", f"p50 a {word}", f"p95 a {word}"]
        yield blocks.table(title(session, stage), heads, rows, key=key)


def _epochs(session: Session) -> Iterator[Block]:
    names = [name for name in PHASES if any(epoch.phases.get(name) for epoch in session.epochs)]
    rows: list[list[Cell]] = [
        [[str(epoch.index), epoch.index], blocks.number(epoch.n_steps), blocks.seconds(epoch.wall_s),
         blocks.seconds(epoch.step_p50_s), *(blocks.seconds(epoch.phases.get(name)) for name in names)]
        for epoch in session.epochs
    ]  # fmt: skip
    if rows:
        heads = ["epoch", "steps", "wall time", "p50 a step", *map(wording.phase_name, names)]
        yield blocks.table("Epochs", heads, rows, key="epochs")


def _named(session: Session) -> Iterator[Block]:
    steady = session.steady
    if steady is None or not steady.named:
        return
    rows: list[list[Cell]] = [
        [each.name, each.hook, each.kind.replace("_", " "), wording.phase_name(each.phase),
         blocks.number(each.n_calls), blocks.seconds(each.total_s), blocks.share(each.share)]
        for each in steady.named
    ]  # fmt: skip
    heads = ["name", "hook", "kind", "phase", "calls", "total", "share"]
    yield blocks.table("Callbacks, loggers and the loop's own parts", heads, rows, key="named")


def _breakdown(session: Session) -> Iterator[Block]:
    breakdown = session.memory.breakdown
    if breakdown is None:
        return
    rows: list[list[Cell]] = [
        [row.name, blocks.size(row.n_bytes), blocks.share(row.share), row.note]
        for row in memory_rows.memory_rows(breakdown)
    ]
    yield blocks.table(memory_rows.memory_title(breakdown), ["", "size", "share", "how it is known"], rows, key="holds")
    yield blocks.figure("memory_modules", "By module")
    rows = [
        [each.name or "outside its modules", blocks.size(each.parameters_bytes), blocks.size(each.gradients_bytes),
         blocks.size(each.optimizer_bytes), blocks.size(each.buffers_bytes), blocks.size(each.activations_bytes)]
        for each in breakdown.modules
    ]  # fmt: skip
    if rows:
        heads = ["module", "parameters", "gradients", "optimizer", "buffers", "activations"]
        yield blocks.table("", heads, rows, key="memory-modules")


def _rules(session: Session) -> Iterator[Block]:
    rows = summary.outcome_rows(session)
    if rows:
        yield blocks.table("Rules", ["code", "what became of it", "why"], rows, key="rules")
    missing = summary.missing_rows(session)
    if missing:
        yield blocks.table("Not measured", ["what", "why"], missing, key="missing")
