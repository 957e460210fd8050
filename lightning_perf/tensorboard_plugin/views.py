"""The views of the tab: sections of the session's document, and parts of the chosen trace."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from lightning_perf.reports import wording
from lightning_perf.reports.document import (
    AnyPart,
    Code,
    Document,
    Figure,
    Heading,
    Note,
    Perfetto,
    Section,
    facts,
    note,
    pairs,
    section,
)
from lightning_perf.reports.sections import memory, model, trace
from lightning_perf.reports.sections.verdict import run_facts, verdict_of
from lightning_perf.reports.session_document import session_document

from . import perfetto
from .library import Shown

TIMELINE_TITLE = "Longest events by thread and stream (drag to zoom, double-click to reset)"

_WINDOW = 'PerfDoctor(schedule=(10, 2, 3, 1))  # or schedule="auto" in a longer run'


class View(NamedTuple):
    """One view.

    Attributes:
        title: On its tab.
        sections: Keys of the sections of the session's document that it shows.
        parts: Yields parts that are shown only in this view.
        empty_text: Shown if a run has no content for this view.
        remedy: Code with which a run has the content.
        missing: Key of the reason in the session's `missing`; empty if it has none.
    """

    title: str
    sections: tuple[str, ...]
    parts: Callable[[Shown], Iterable[AnyPart]]
    empty_text: str
    remedy: str
    missing: str = ""


def draw(name: str, shown: Shown) -> tuple[list[Section], dict[str, str]]:
    """Return the sections of a view, and for each view without content its remedy, or the reason."""
    document = session_document(shown.session, show_all=True)
    found = {each: _sections(each, document, shown) for each in VIEWS}
    empty = {
        each: view.remedy or _why_empty(view, shown) for each, view in VIEWS.items() if not _has_content(found[each])
    }
    if name not in empty:
        return found[name], empty
    view = VIEWS[name]
    hint: list[AnyPart] = [note(_why_empty(view, shown)), Code((view.remedy,) if view.remedy else (), language="")]
    return [section("empty", "", hint, is_short=True)], empty


def _sections(name: str, document: Document, shown: Shown) -> list[Section]:
    view = VIEWS[name]
    chosen = [each for each in document.sections if each.key in view.sections and each.parts]
    own = [each for each in (section(name, "", view.parts(shown), is_short=True),) if each.parts]
    if name != "overview":
        return own + [msgspec.structs.replace(each, is_short=True) for each in chosen]
    if shown.is_trace_only and shown.trace is not None:
        steps: list[AnyPart] = [trace.categories_table(shown.trace), Figure("trace_steps", "Time per step by category")]
        chosen = [each for each in chosen if each.key in ("fixes", "findings")]
        chosen.insert(0, section("time", "", steps, is_short=True))
        chosen.append(section("trace", "Trace", trace.detail_parts(shown.trace)))
    return own + chosen


def _has_content(sections: list[Section]) -> bool:
    """Return whether there is more than hints and figures, which may be empty."""
    return any(not isinstance(part, Figure | Note | Code | Heading) for each in sections for part in each.parts)


def _why_empty(view: View, shown: Shown) -> str:
    if shown.is_trace_only:
        return f"{view.empty_text} This is a profiler trace without a PerfDoctor session."
    reason = shown.session.missing.get(view.missing, "")
    return f"{view.empty_text} Reason: {wording.line(reason, 200)}." if reason else view.empty_text


def _overview(shown: Shown) -> Iterator[AnyPart]:
    session, record = shown.session, shown.trace
    yield verdict_of(session)
    if record is None or not shown.is_trace_only:
        yield facts(run_facts(session))
        return
    rank = "" if record.rank is None else f"{record.rank} of {record.world_size or 'unknown'}"
    device = record.device_name or record.missing.get("device", "")
    events = f"{record.n_events:,}, {record.n_kernels:,} of them kernels"
    yield pairs([("Trace", record.source), ("Device", device), ("Rank", rank), ("Events", events)])


def _operators(shown: Shown) -> Iterator[AnyPart]:
    if shown.trace is not None:
        yield from trace.operator_parts(shown.trace)
    if shown.session.model_profile is not None:
        yield model.operator_table(shown.session.model_profile)


def _kernels(shown: Shown) -> Iterator[AnyPart]:
    if shown.trace is not None and shown.trace.kernels is not None and shown.trace.kernels.top:
        yield from trace.kernel_parts(shown.trace)


def _memory(shown: Shown) -> Iterator[AnyPart]:
    session = shown.session
    yield facts([memory.peaks_fact(session)], "Peaks")
    if session.memory.breakdown is None and not shown.is_trace_only:
        reason = session.missing.get("memory.breakdown", session.missing.get("memory", "not measured"))
        yield note(f"Memory by component is unknown: {reason}.")
    if shown.trace is not None:
        yield from trace.copy_parts(shown.trace)
        if shown.trace.device is not None:
            yield pairs([("Device memory", wording.size(shown.trace.device.memory_bytes))])


def _modules(shown: Shown) -> Iterator[AnyPart]:
    profile = shown.session.model_profile
    if profile is not None and profile.forward_flops is None:
        yield facts(model.model_facts(profile), "Model")
        yield model.module_table(profile)


def _data(shown: Shown) -> Iterator[AnyPart]:
    if shown.session.loader_probe is None and not shown.is_trace_only:
        yield note("The DataLoader was not measured by itself. To measure it:")
        yield Code(("lightning-perf data -- python train.py", "PerfDoctor(probe_data=True)"), language="")


def _trials(shown: Shown) -> Iterator[AnyPart]:
    yield note(f"Measured in {wording.line(shown.trial_label, 200)}." if shown.trial_label else "")


def _trace(shown: Shown) -> Iterator[AnyPart]:
    if shown.trace is None:
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


_FIRST = ("time", "fixes", "findings", "history", "validation", "about")

VIEWS: dict[str, View] = {
    "overview": View("Overview", _FIRST, _overview, "Nothing was measured.", ""),
    "operators": View("Operators", (), _operators, "No profiler window was recorded.", _WINDOW, "windows"),
    "kernels": View("Kernels", (), _kernels, "Kernels are recorded on a GPU, in a profiler window.", _WINDOW),
    "memory": View("Memory", ("memory",), _memory, "Memory was not measured.",
                   "PerfDoctor(options=DoctorOptions(memory=True))", "memory"),
    "modules": View(
        "Modules", ("model",), _modules, "The compute cost of the modules was not measured.",
        "PerfDoctor(options=DoctorOptions(arithmetic=True))", "model_profile",
    ),
    "data": View("Data and host", ("loader", "host"), _data, "The DataLoader was not measured by itself.",
                 "PerfDoctor(probe_data=True)"),
    "ranks": View("Ranks", ("ranks",), lambda _: (), "Only one rank reported.", "Trainer(devices=2)"),
    "earlier": View(
        "History", ("earlier",), lambda _: (), "No earlier run of this training is recorded.",
        "lightning-perf history list", "earlier",
    ),
    "trials": View(
        "Trials", ("autopilot", "trials"), _trials, "No treatment was tried on this training.",
        "lightning-perf trial -- python train.py",
    ),
    "trace": View("Trace", (), _trace, "No profiler window was recorded.", _WINDOW, "windows"),
}  # fmt: skip
"""By name, in the order of the tabs; Diff, which needs two runs, has a separate route."""
