"""Host code inside steps: lines that take time or synchronize, loops over tensors, the compiler, the loss scaler."""

from collections.abc import Iterator, Sequence
from typing import cast

from lightning_perf.records import (
    LINE_METRIC,
    Finding,
    GraphBreak,
    LossScaler,
    ModelProfile,
    Recompile,
    Session,
    SyncCalls,
)
from lightning_perf.reports.cells import Cell, Heads, Rows, number, seconds
from lightning_perf.reports.cells import share as share_cell
from lightning_perf.reports.document import AnyPart, facts, heading, table
from lightning_perf.reports.wording import count, line, share
from lightning_perf.reports.wording import number as number_text
from lightning_perf.reports.wording import seconds as seconds_text
from lightning_perf.rules.user_lines import lines_of
from lightning_perf.rules.wording import site_of

HEAVY_SHARE = 0.40
"""A module is named if it takes at least this share of the time of all modules."""

LINES_TITLE = "Where host time goes: lines of your code, without torch operators in forward and backward"

_MAX_ROWS = 8
_MIN_LINE_SHARE = 0.01
_OWNERS = {"user": "your code", "lightning": "Lightning", "other": "library"}


def host_parts(session: Session) -> Iterator[AnyPart]:
    """Yield lines that take time, synchronizing lines, compilations, and single facts."""
    calls, watch = session.sync_calls, session.compiler
    heads: Heads = ("line", "calls", "phase", "share of time", "per step", "finding")
    yield table(heads, line_rows(session), title=LINES_TITLE, key="lines", n_brief=_MAX_ROWS)
    if calls is not None:
        heads = ("line", "what", "calls per step", "time per step", "owner")
        yield table(heads, sync_rows(calls), title=sync_title(calls), key="syncs", n_brief=_MAX_ROWS)
        yield facts(f"{line(part, 40)} not measured: {line(why, 160)}" for part, why in calls.unseen.items())
    if watch is not None:
        yield heading(f"torch.compile: {count(watch.n_compiles, 'compilation')} in {seconds_text(watch.compile_s)}")
        texts = [count(watch.n_functions, "function")] if watch.n_functions else []
        if watch.n_compiled_steps:
            texts.append(f"{count(watch.n_compiled_steps, 'step')} with compilation, excluded from all figures")
        if watch.n_after_warmup:
            texts.append(f"{watch.n_after_warmup} after warmup, {seconds_text(watch.compile_after_warmup_s)}")
        yield facts(texts, "Compiler")
        rows: Rows = [
            (_place(each.file, each.line, each.function), what, number(each.n), line(each.reason, 100))
            for what, events in (("recompilation", watch.recompiles), ("graph break", watch.graph_breaks))
            for each in cast(Sequence[Recompile | GraphBreak], events)
        ]
        yield table(("function", "what", "n", "reason"), rows, key="compiler", n_brief=_MAX_ROWS)
    yield facts([heavy_module_fact(session.model_profile), scaler_fact(session.loss_scaler)], "Host")


def line_rows(session: Session) -> list[tuple[Cell, ...]]:
    """Return the user's costliest lines and the findings that name them; empty where no stack was sampled."""
    steady = session.steady
    if steady is None:
        return []
    rows: list[tuple[Cell, ...]] = []
    for time in lines_of(session):
        part = time.seconds / steady.span_s
        if part < _MIN_LINE_SHARE:
            break
        named = [found.code for found in session.findings if time.where in _text(found)]
        rows.append((line(time.where, 60), line(time.line.call, 40), time.phase.replace("_", " "), share_cell(part),
                     seconds(time.seconds / steady.n_span_steps), ", ".join(named) or "none"))  # fmt: skip
    return rows


def _text(found: Finding) -> str:
    return " ".join([found.summary, *(one.metric for one in found.evidence if one.metric.startswith(LINE_METRIC))])


def sync_title(calls: SyncCalls) -> str:
    """Return the heading of the table."""
    what = "would synchronize with a device" if calls.device == "cpu" else "synchronize with the device"
    return f"Lines that {what} ({count(calls.n_steps, 'sampled step')})"


def sync_rows(calls: SyncCalls) -> list[tuple[Cell, ...]]:
    """Return loops over tensors, synchronizing lines and unfused attention, the user's own lines first."""
    user = _OWNERS["user"]
    return [
        *((_place(a.file, a.line), f"loop over a tensor, {count(a.repeats, 'iteration')}", number(None),
           seconds(a.cost_s), user) for a in calls.loops),
        *((_place(a.file, a.line), line(a.operator, 40), number(a.per_step), seconds(a.cost_s), _OWNERS[a.owner])
          for a in calls.calls),
        *((_place(a.file, a.line), f"unfused attention, {a.rows} x {a.columns}", number(a.per_step),
           seconds(a.cost_s), user) for a in calls.attentions),
    ]  # fmt: skip


def scaler_fact(scaler: LossScaler | None) -> str:
    """Return the state of the loss scaler in one sentence; empty without one."""
    if scaler is None:
        return ""
    skipped = ""
    if scaler.skips is not None:
        n_steps = count(scaler.n_steps + scaler.n_warmup_steps, "step")
        skipped = f", {scaler.skips + scaler.warmup_skips} of {n_steps} skipped"
    return f"loss scale {number_text(scaler.scale)} (initially {number_text(scaler.first_scale)}){skipped}"


def heavy_module_fact(profile: ModelProfile | None) -> str:
    """Return the module that takes at least `HEAVY_SHARE` of the time of all; empty if none does."""
    path, part = heavy_module(profile, "forward", "backward")
    return f"{line(path, 60)} takes {share(part)} of forward and backward" if path else ""


def heavy_module(profile: ModelProfile | None, *passes: str) -> tuple[str, float]:
    """Return the path and the share of the module that takes at least `HEAVY_SHARE` of these passes.

    Args:
        profile: The model's; None if there is none.
        passes: ``"forward"``, ``"backward"`` or both.

    Returns:
        ``("", 0.0)`` if no module does, or if only one has a name.
    """
    timed = [m for m in profile.modules if m.forward_s is not None] if profile is not None else []
    spent = {m.path: sum(getattr(m, f"{each}_s") or 0.0 for each in passes) for m in timed}
    path = max(filter(None, spent), key=lambda each: spent[each], default="")
    if sum(map(bool, spent)) < 2 or not 0 < spent[path] >= HEAVY_SHARE * sum(spent.values()):
        return "", 0.0
    return path, spent[path] / sum(spent.values())


def _place(file: str, at: int, function: str = "") -> str:
    if not file:
        return "unknown"
    return line(f"{site_of(file, at)} {function}".strip(), 60)
