"""The views of the tab: the parts that each one shows, which the page draws without knowing their meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lightning_perf.records import Session, TraceRecord
from lightning_perf.reports import wording
from lightning_perf.reports.document import AnyPart, Code, Figure, Perfetto, facts, heading, note, pairs
from lightning_perf.reports.sections import about, findings, host, loader, memory, model, phases, ranks, trace, trials
from lightning_perf.reports.sections.verdict import run_facts, verdict_of

from . import perfetto
from .library import Shown

NO_TRACE = "No profiler window was recorded in this run: there are no figures of single operators and kernels."
TIMELINE_TITLE = "Longest events by thread and stream (drag to zoom, double-click to reset)"


class View(NamedTuple):
    """One view.

    Attributes:
        title: On its tab.
        draw: Yields its parts.
    """

    title: str
    draw: Callable[[Shown], Iterator[AnyPart]]


def overview(shown: Shown) -> Iterator[AnyPart]:
    """Yield the verdict, the findings, and where the time went."""
    session = shown.session
    yield verdict_of(session)
    if shown.is_trace_only and shown.trace is not None:
        yield from _overview_of_trace(session, shown.trace)
        return
    yield facts(run_facts(session), "Run")
    if session.steady is None:
        yield note(f"No steady steps: {session.missing.get('steady', 'too few were measured')}.")
    yield from _findings(session)
    if session.steady is not None:
        yield heading(phases.steady_title(session, session.steady))
    yield from phases.steady_parts(session, folded_below=0.0)
    if session.validation is not None:
        yield heading(phases.validation_title(session.validation))
        yield from phases.stage_parts(session.validation, "batch", "validation-phases", folded_below=0.0)
    if shown.trace is not None:
        yield trace.categories_table(shown.trace)
    yield from about.about_parts(session, show_all=True)


def _overview_of_trace(session: Session, record: TraceRecord) -> Iterator[AnyPart]:
    rank = "" if record.rank is None else f"{record.rank} of {record.world_size or 'unknown'}"
    device = record.device_name or record.missing.get("device", "")
    events = f"{record.n_events:,}, {record.n_kernels:,} of them kernels"
    yield pairs([("Trace", record.source), ("Device", device), ("Rank", rank), ("Events", events)])
    yield from _findings(session)
    yield Figure("trace_steps", "Time per step by category")
    yield from trace.trace_parts(record)


def _findings(session: Session) -> Iterator[AnyPart]:
    if session.findings:
        yield heading("Findings")
        yield from findings.finding_parts(session)
    else:
        yield heading("Findings: none")
        yield note(f"Rules: {about.rules_fact(session)}" if session.outcomes else "No rule ran.")


def operators(shown: Shown) -> Iterator[AnyPart]:
    """Yield the operators of a profiler window, and those whose FLOPs were counted."""
    yield Figure("operators", "Operators")
    if shown.trace is None:
        yield note(NO_TRACE)
    else:
        yield from trace.operator_parts(shown.trace)
    if shown.session.model_profile is not None:
        yield model.operator_table(shown.session.model_profile)


def kernels(shown: Shown) -> Iterator[AnyPart]:
    """Yield the kernels of a profiler window."""
    record = shown.trace
    yield Figure("kernels", "Kernels")
    if record is None:
        yield note(NO_TRACE)
    elif record.kernels is None or not record.kernels.top:
        why = record.missing.get("kernels") or record.missing.get("device") or "the trace holds none"
        yield note(f"No kernels: {why}.")
    else:
        yield from trace.kernel_parts(record)


def memory_view(shown: Shown) -> Iterator[AnyPart]:
    """Yield what memory holds, when, and how it grows."""
    session = shown.session
    if not shown.is_trace_only:
        yield facts([memory.peaks_fact(session)], "Peaks")
        yield heading(memory.memory_title(session.memory.breakdown))
        yield from memory.memory_parts(session)
        if session.memory.breakdown is None:
            why = session.missing.get("memory.breakdown", session.missing.get("memory", "it was not measured"))
            yield note(f"Memory by component is unknown: {why}.")
    if shown.trace is not None:
        yield from trace.copy_parts(shown.trace)
        if shown.trace.device is not None:
            yield pairs([("Device memory", wording.size(shown.trace.device.memory_bytes))])


def modules(shown: Shown) -> Iterator[AnyPart]:
    """Yield the compute cost of each module against the limits of the device."""
    profile = shown.session.model_profile
    if profile is None:
        why = shown.session.missing.get("model_profile", "no step was sampled")
        if shown.is_trace_only:
            why = "a trace does not say which module calls an operator"
        yield note(f"The compute cost of the modules is unknown: {why}.")
        return
    yield heading(model.model_title(profile))
    yield facts(model.model_facts(profile), "Model")
    yield from model.model_parts(profile)
    if profile.forward_flops is None:
        yield model.module_table(profile)


def ranks_view(shown: Shown) -> Iterator[AnyPart]:
    """Yield the ranks side by side."""
    told = shown.session.ranks
    if told is None or len(told.summaries) < 2:
        n = shown.session.run.world_size
        yield note("This run had one rank." if n < 2 else f"Only one of {n} ranks reported.")
    if told is not None:
        yield heading(ranks.rank_title(told))
        yield from ranks.rank_parts(told)


def trials_view(shown: Shown) -> Iterator[AnyPart]:
    """Yield the measured speedups of treatments."""
    if not shown.session.trials:
        yield note("No trial was made of this training. To measure the speedup of a fix:")
        yield Code(("lightning-perf trial -- python train.py",), language="")
    yield Figure("trials", "Measured speedups")
    for trial in shown.session.trials:
        yield from trials.trial_parts(trial)


def data_and_host(shown: Shown) -> Iterator[AnyPart]:
    """Yield the DataLoader by itself, and the host code of a step."""
    session = shown.session
    if session.loader_probe is not None:
        yield heading(loader.loader_title(session.loader_probe))
        yield from loader.loader_parts(session)
    else:
        yield note("The DataLoader was not measured by itself. To do so:")
        yield Code(("lightning-perf data -- python train.py", "PerfDoctor(probe_data=True)"), language="")
    yield from host.host_parts(session)
    yield from phases.named_parts(session)


def trace_view(shown: Shown) -> Iterator[AnyPart]:
    """Yield the trace itself in Perfetto if that is installed, and its steps."""
    if shown.trace is None:
        yield note(NO_TRACE)
        return
    if shown.file is None:
        yield note("The trace file is not on this machine: only its summary is shown.")
    elif perfetto.folder() is None:
        yield note("To see every event here, install the Perfetto viewer and restart TensorBoard:")
        yield Code(('pip install "lightning-perf[trace]"',), language="")
        yield Figure("trace_events", TIMELINE_TITLE)
    else:
        yield Perfetto(shown.trace.source)
    yield Figure("trace_steps", "Time per step by category")
    yield trace.steps_table(shown.trace)
    yield trace.categories_table(shown.trace)


VIEWS: dict[str, View] = {
    "overview": View("Overview", overview),
    "operators": View("Operators", operators),
    "kernels": View("Kernels", kernels),
    "memory": View("Memory", memory_view),
    "modules": View("Modules", modules),
    "data": View("Data and host", data_and_host),
    "ranks": View("Ranks", ranks_view),
    "trials": View("Trials", trials_view),
    "trace": View("Trace", trace_view),
}
"""By name, in the order of the tabs; Diff, which needs two runs, has a route of its own."""
