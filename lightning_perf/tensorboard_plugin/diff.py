"""Two runs beside one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lightning_perf.errors import SessionError
from lightning_perf.records import Comparison, TraceRecord
from lightning_perf.reports import comparison_rows, wording
from lightning_perf.stats.comparison import compare_sessions

from . import blocks
from .blocks import Block, Cell
from .library import Shown

_LEAST_SHARE = 0.001
"""Of the time analysed: what changed by less is left out of the lists of operators and kernels."""


def diff(base: Shown, new: Shown) -> Iterator[Block]:
    """What is faster or slower in ``new``, and what else differs."""
    if not base.is_trace_only and not new.is_trace_only:
        try:
            comparison = compare_sessions([(base.label, base.session)], [(new.label, new.session)])
        except SessionError as error:
            yield blocks.note(str(error), "problem")
        else:
            yield from _compared(comparison)
    if base.trace is not None and new.trace is not None:
        yield from _traces(base.trace, new.trace)
    elif base.is_trace_only or new.is_trace_only:
        yield blocks.note("One of the two is a trace alone and the other has no profiler window: nothing to compare.")


def _compared(comparison: Comparison) -> Iterator[Block]:
    yield blocks.heading(comparison_rows.headline(comparison))
    yield blocks.facts([("Compared", " · ".join(comparison_rows.facts(comparison)))])
    yield {"type": "figure", "name": "steps_diff", "title": "The step, base and new", "is_pair": True}
    rows = comparison_rows.time_rows(comparison)
    yield blocks.table("Time", comparison_rows.TIME_HEADS, rows, key="times")
    for text in (*comparison_rows.no_interval(comparison), *comparison.cautions):
        yield blocks.note(text)
    figures = comparison_rows.figure_rows(comparison)
    if figures:
        yield blocks.table("Memory and throughput", comparison_rows.FIGURE_HEADS, figures, key="figures")
    found = comparison_rows.finding_rows(comparison)
    if found:
        heads = ("", *comparison_rows.FINDING_HEADS)
        yield blocks.table("Findings that came, went or changed", heads, found, key="finding-changes")
    yield blocks.facts([("Both have", comparison_rows.stayed(comparison))])
    for title, differences in (("Settings", comparison.settings), ("Environment", comparison.environment)):
        told = comparison_rows.difference_rows(differences)
        if told:
            yield blocks.table(f"{title} that differ", comparison_rows.DIFFERENCE_HEADS, told, key=title.lower())
    tried = comparison_rows.trial_rows(comparison)
    if tried:
        yield blocks.table("Trials", comparison_rows.TRIAL_HEADS, tried, key="trial-changes")


def _traces(base: TraceRecord, new: TraceRecord) -> Iterator[Block]:
    one, other = _per_step(base, _categories(base)), _per_step(new, _categories(new))
    yield _beside("By what a step spends its time on, as the profiler tells it", "", one, other, "category-changes")
    one, other = _per_step(base, _host(base)), _per_step(new, _host(new))
    if one or other:
        yield _beside("Operators, host time of their own a step", "operator", one, other, "host-changes")
    if base.device is None or new.device is None:
        return
    one, other = _per_step(base, _device(base)), _per_step(new, _device(new))
    yield _beside("Operators, device time of their own a step", "operator", one, other, "device-changes")
    one, other = _per_step(base, _kernels(base)), _per_step(new, _kernels(new))
    if one or other:
        yield _beside("Kernels, time a step", "kernel", one, other, "kernel-changes")


def _host(trace: TraceRecord) -> dict[str, float]:
    return {each.name: each.host_self_s for each in trace.operators}


def _device(trace: TraceRecord) -> dict[str, float]:
    return {each.name: each.device_self_s for each in trace.operators}


def _kernels(trace: TraceRecord) -> dict[str, float]:
    return {each.name: each.total_s for each in trace.kernels.top} if trace.kernels is not None else {}


def _categories(trace: TraceRecord) -> dict[str, float]:
    windows = trace.windows
    names = windows[0].categories if windows else {}
    return {name.replace("_", " "): sum(window.categories.get(name, 0.0) for window in windows) for name in names}


def _per_step(trace: TraceRecord, totals: Mapping[str, float]) -> dict[str, float]:
    """Per step, where both have steps that may be compared; the whole trace counts as one."""
    n = max(1, len(trace.steps))
    return {name: total / n for name, total in totals.items()}


def _beside(title: str, head: str, base: Mapping[str, float], new: Mapping[str, float], key: str) -> Block:
    least = _LEAST_SHARE * max(sum(base.values()), sum(new.values()), 0.0)
    names = {**base, **new}
    ordered = sorted(names, key=lambda name: -abs(new.get(name, 0.0) - base.get(name, 0.0)))
    rows: list[list[Cell]] = [
        [name, blocks.seconds(base.get(name)), blocks.seconds(new.get(name)),
         _signed_seconds(new.get(name, 0.0) - base.get(name, 0.0)), _change(base.get(name), new.get(name))]
        for name in ordered
        if max(base.get(name, 0.0), new.get(name, 0.0)) >= least
    ]  # fmt: skip
    return blocks.table(title, [head, "base", "new", "difference", "change"], rows, key=key)


def _signed_seconds(value: float) -> Cell:
    return [f"{'+' if value > 0 else '−' if value < 0 else ''}{wording.seconds(abs(value))}", value]


def _change(base: float | None, new: float | None) -> Cell:
    if base is None or new is None or base <= 0:
        return ["", None]
    change = 100 * (new / base - 1)
    text = f"{abs(change):,.1f} %"
    return [text if text == "0.0 %" else ("+" if change > 0 else "−") + text, new / base]
