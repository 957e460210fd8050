"""The view Diff, which compares two runs."""

from collections.abc import Iterator, Mapping

from lightning_perf.errors import SessionError
from lightning_perf.records import TraceRecord
from lightning_perf.reports import wording
from lightning_perf.reports.cells import Rows, Value, seconds
from lightning_perf.reports.document import AnyPart, Section, Table, facts, note, section, table
from lightning_perf.reports.sections.comparison import change, comparison_document
from lightning_perf.stats.comparison import compare_sessions

from .library import Shown

_MIN_SHARE = 0.001
"""Operators and kernels below this share of the analyzed time are left out."""


def diff(base: Shown, new: Shown) -> Iterator[Section]:
    """Yield the sections of the view: what is faster or slower in `new`, and what else differs."""
    if not base.is_trace_only and not new.is_trace_only:
        try:
            comparison = compare_sessions([(base.label, base.session)], [(new.label, new.session)])
        except SessionError as error:
            yield section("verdict", "", [note(str(error), "problem")], is_short=True)
        else:
            document = comparison_document(comparison)
            assert document.verdict is not None
            yield section("verdict", "", [document.verdict, facts(document.facts)], is_short=True)
            yield from (each for each in document.sections if each.parts)
    if base.trace is not None and new.trace is not None:
        names = (f"{side}: {_trace_label(one)}" for side, one in (("base", base), ("new", new)))
        chosen = facts(names, "traces")
        parts = [chosen, *_traces(base.trace, new.trace)]
        yield section("trace", "Profiler windows", parts, is_short=base.is_trace_only)
    elif base.is_trace_only or new.is_trace_only:
        text = "One run is only a trace and the other has no profiler window: nothing to compare."
        yield section("trace", "", [note(text)], is_short=True)


def _trace_label(shown: Shown) -> str:
    texts = (shown.label, *shown.traces[shown.chosen : shown.chosen + 1])
    return ", ".join(wording.line(text, 80) for text in texts)


def _traces(base: TraceRecord, new: TraceRecord) -> Iterator[AnyPart]:
    on_device = base.device is not None and new.device is not None
    host = [{each.name: each.host_self_s for each in trace.operators} for trace in (base, new)]
    device = [{each.name: each.device_self_s for each in trace.operators} for trace in (base, new)]
    kernels = [
        {each.name: each.total_s for each in trace.kernels.top} if trace.kernels else {} for trace in (base, new)
    ]
    for title, head, (one, other), key in (
        ("Time per step by category", "category", [_categories(base), _categories(new)], "category-changes"),
        ("Operators, host self time per step", "operator", host, "host-changes"),
        ("Operators, device self time per step", "operator", device if on_device else [{}, {}], "device-changes"),
        ("Kernels, time per step", "kernel", kernels if on_device else [{}, {}], "kernel-changes"),
    ):
        yield _changes_table(title, head, _per_step(base, one), _per_step(new, other), key)


def _categories(trace: TraceRecord) -> dict[str, float]:
    names = trace.windows[0].categories if trace.windows else {}
    return {name.replace("_", " "): sum(w.categories.get(name, 0.0) for w in trace.windows) for name in names}


def _per_step(trace: TraceRecord, totals: Mapping[str, float]) -> dict[str, float]:
    """Return times per step; a trace without steps counts as one."""
    n = max(1, len(trace.steps))
    return {name: total / n for name, total in totals.items()}


def _changes_table(title: str, head: str, base: Mapping[str, float], new: Mapping[str, float], key: str) -> Table:
    least = _MIN_SHARE * max(sum(base.values()), sum(new.values()), 0.0)
    names = {**base, **new}
    ordered = sorted(names, key=lambda name: -abs(new.get(name, 0.0) - base.get(name, 0.0)))
    rows: Rows = [
        (name, seconds(base.get(name)), seconds(new.get(name)),
         _signed_seconds(new.get(name, 0.0) - base.get(name, 0.0)), change(base.get(name), new.get(name)))
        for name in ordered
        if max(base.get(name, 0.0), new.get(name, 0.0)) >= least
    ]  # fmt: skip
    return table((head, "base", "new", "difference", "change"), rows, title=title, key=key)


def _signed_seconds(value: float) -> Value:
    return Value(f"{'+' if value > 0 else '−' if value < 0 else ''}{wording.seconds(abs(value))}", value)
