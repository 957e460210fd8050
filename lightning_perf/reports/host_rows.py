"""What reports say of single steps' code: lines that make the host wait, loops, the compiler, the loss scaler."""

from __future__ import annotations

from lightning_perf.records import LINE_METRIC, CompilerWatch, Finding, LossScaler, ModelProfile, Session, SyncCalls
from lightning_perf.rules.user_lines import lines_of

from .wording import count, line, number, seconds, share

LINES_TITLE = "Where host time goes: lines of your code, without torch operators in forward and backward"
LINE_HEADS = ("line", "calls", "phase", "of the time", "per step", "finding")
LINE_ALIGNS = "lllrrl"

SYNC_HEADS = ("line", "what", "a step", "in it", "whose")
COMPILER_HEADS = ("function or place", "what", "times", "reason")

HEAVY_SHARE = 0.40
"""Of the modules' time: one module that has so much of it is told."""

_MAX_ROWS = 8
_MIN_LINE_SHARE = 0.01
_OWNERS = {"user": "yours", "lightning": "Lightning's", "other": "a library's"}


def line_rows(session: Session) -> list[tuple[str, ...]]:
    """Return the costliest lines of the user's with the findings that name them; empty where no stack was sampled."""
    steady = session.steady
    if steady is None:
        return []
    rows: list[tuple[str, ...]] = []
    for time in lines_of(session):
        part = time.seconds / steady.span_s
        if part < _MIN_LINE_SHARE:
            break
        named = [found.code for found in session.findings if time.where in _text(found)]
        rows.append((line(time.where, 60), line(time.line.call, 40), time.phase.replace("_", " "), share(part),
                     seconds(time.seconds / steady.n_steps), ", ".join(named) or "none"))  # fmt: skip
    return rows[:_MAX_ROWS]


def _text(found: Finding) -> str:
    return " ".join([found.summary, *(one.metric for one in found.evidence if one.metric.startswith(LINE_METRIC))])


def sync_title(calls: SyncCalls) -> str:
    """What the rows are about."""
    what = "would make the host wait on a device" if calls.device == "cpu" else "make the host wait"
    return f"Lines that {what}: {count(calls.n_steps, 'step')} looked at"


def sync_rows(calls: SyncCalls) -> list[tuple[str, ...]]:
    """Loops over tensors and lines that wait, the user's before Lightning's and others'; one line a line of code."""
    rows: list[tuple[str, ...]] = [
        (_place(loop.file, loop.line), f"loop over a tensor, {count(loop.repeats, 'round')}", "", seconds(loop.cost_s),
         _OWNERS["user"])
        for loop in calls.loops
    ]  # fmt: skip
    rows += [
        (_place(c.file, c.line), line(c.operator, 40), number(c.per_step), seconds(c.cost_s), _OWNERS[c.owner])
        for c in calls.calls
    ]
    rows += [
        (_place(a.file, a.line), f"attention written out, {a.rows} x {a.columns}", number(a.per_step),
         seconds(a.cost_s), _OWNERS["user"])
        for a in calls.attentions
    ]  # fmt: skip
    return rows[:_MAX_ROWS]


def sync_note(calls: SyncCalls) -> str:
    """What such a look did not see; empty where there is nothing to say."""
    return "; ".join(f"{line(part, 40)} not seen: {line(why, 160)}" for part, why in calls.unseen.items())


def compiler_title(watch: CompilerWatch) -> str:
    """What the rows are about."""
    return f"torch.compile: {count(watch.n_compiles, 'compilation')} in {seconds(watch.compile_s)}"


def compiler_facts(watch: CompilerWatch) -> list[str]:
    """When it compiled, and what of it is in no statistic."""
    facts = [count(watch.n_functions, "function")] if watch.n_functions else []
    if watch.n_compiled_steps:
        facts.append(f"{count(watch.n_compiled_steps, 'step')} that compiled, left out of all figures")
    if watch.n_after_warmup:
        facts.append(f"{watch.n_after_warmup} after the first steps, in {seconds(watch.compile_after_warmup_s)}")
    return facts


def compiler_rows(watch: CompilerWatch) -> list[tuple[str, ...]]:
    """What was compiled again, and where regions end."""
    rows: list[tuple[str, ...]] = [
        (_place(r.file, r.line, r.function), "compiled again", str(r.n), line(r.reason, 100)) for r in watch.recompiles
    ]
    rows += [(_place(b.file, b.line, b.function), "graph break", str(b.n), line(b.reason, 100))
             for b in watch.graph_breaks]  # fmt: skip
    return rows[:_MAX_ROWS]


def scaler_fact(scaler: LossScaler | None) -> str:
    """The loss scaler in one sentence; empty without one."""
    if scaler is None:
        return ""
    known = "" if scaler.skips is None else f", {scaler.skips + scaler.warmup_skips} of "
    steps = f"{known}{count(scaler.n_steps + scaler.n_warmup_steps, 'step')} skipped" if known else ""
    return f"loss scaler: scale {number(scaler.scale)}, at first {number(scaler.first_scale)}{steps}"


def heavy_module_fact(profile: ModelProfile | None) -> str:
    """The module that takes at least ``HEAVY_SHARE`` of the time of all; empty where none does."""
    timed = [m for m in profile.modules if m.forward_s is not None] if profile is not None else []
    spent = {m.path: (m.forward_s or 0.0) + (m.backward_s or 0.0) for m in timed}
    total = sum(spent.values())
    heavy = [(path, s / total) for path, s in spent.items() if path and total > 0 and s >= HEAVY_SHARE * total]
    if not heavy or len([path for path in spent if path]) < 2:
        return ""
    path, part = max(heavy, key=lambda each: each[1])
    return f"{line(path, 60)} alone takes {share(part)} of forward and backward"


def _place(file: str, at: int, function: str = "") -> str:
    if not file:
        return "not known"
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    return line(f"{name}:{at} {function}".strip(), 60)


def host_facts(session: Session) -> list[str]:
    """Facts beside the tables."""
    return [*filter(None, [heavy_module_fact(session.model_profile), scaler_fact(session.loss_scaler)])]
