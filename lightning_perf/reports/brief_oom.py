"""The brief report of a run whose memory ran out: what filled it, what each fix frees, how to resume."""

import re
from collections.abc import Iterator

from rich.cells import set_cell_size

from lightning_perf.records import RANKS_FOLDER, Finding, OutOfMemory, Prescription, Session
from lightning_perf.records.remote import any_path

from . import wording
from .brief_lines import (
    BLANK,
    GAP,
    LAST_GAP,
    MAX_WIDTH,
    MORE,
    NEEDED,
    Line,
    bar,
    command,
    part_of,
    titled,
    wrapped,
)
from .fixes import clause, first_sentence
from .render.console import QUIET, joined
from .sections import memory
from .sections.post_mortem import WHERE, circumstances

_MAX_FIXES = 3
_MAX_PARTS = 3
_FIX, _FREES = 53, 15
"""Widths of the columns of fixes."""
_CALL = re.compile(r"(\w+)\(\.\.\., (.+)\)")
"""Code that only sets arguments."""


def out_of_memory(session: Session, oom: OutOfMemory, place: str | None) -> Iterator[Line]:
    """Yield the lines above the commands; ``place`` is the path of the session, None if it was not saved."""
    finding = _finding(session)
    yield from titled([_headline(finding, oom)], "PD408", "bold red")
    error = re.split(r"(?<=\.) ", wording.line(oom.error, 400).removeprefix("OutOfMemoryError: "))
    yield Line(((wording.cut(joined(error, " ", MAX_WIDTH)[0], MAX_WIDTH), QUIET),))
    texts = [each for each in circumstances(oom) if not each.startswith("in ") and not each.endswith(" requested")]
    for i, each in enumerate(joined(texts, " · ", MAX_WIDTH)[:2]):
        yield Line(((wording.cut(each, MAX_WIDTH), QUIET),), MORE if i else NEEDED)
    yield from _parts(session, oom)
    yield from _fixes(finding)
    yield Line((), LAST_GAP)
    if oom.checkpoint:
        yield command("resume", f"trainer.fit(model, ckpt_path={wording.short_path(oom.checkpoint)!r})")
    if oom.post_mortem_file:
        folder = any_path(place or "")
        folder = folder.parent if folder.suffix == ".json" else folder
        folder = folder.parent if folder.name == RANKS_FOLDER else folder
        file = str(folder / wording.line(oom.post_mortem_file, 200))
        yield command("memory", file, "what held memory at the failure")


def brief_post_mortem(session: Session, oom: OutOfMemory, file: str | None) -> str:
    """Return one sentence for ranks without a report of their own, with the post-mortem's file."""
    return f"PerfDoctor: {_headline(_finding(session), oom)}{f'; post-mortem: {file}' if file else ''}\n"


def _finding(session: Session) -> Finding | None:
    return next((each for each in session.findings if each.code == "PD408"), None)


def _headline(finding: Finding | None, oom: OutOfMemory) -> str:
    return first_sentence(finding.summary) if finding is not None else f"{WHERE[oom.where]} after step {oom.step}"


def _parts(session: Session, oom: OutOfMemory) -> Iterator[Line]:
    """Yield what filled the memory that ran out, the largest parts first."""
    breakdown = session.memory.breakdown
    if breakdown is None or breakdown.device.startswith("cpu") != (oom.where != "device"):
        return
    rows = memory.memory_rows(breakdown)
    if not rows:
        return
    is_gpu = oom.where == "device"
    label = "GPU memory at failure" if is_gpu else "tensors in memory"
    for device in session.memory.devices[: int(is_gpu)]:
        label += f": {part_of(device.peak_reserved_bytes, device.total_bytes)} reserved"
    yield BLANK
    yield Line(((f"  {label}", QUIET),))
    for i, row in enumerate(rows[:_MAX_PARTS]):
        text = f"  {row.name:<19}{wording.size(row.n_bytes):>9}  "
        yield Line(((text, ""), bar(row.share)), GAP if i == _MAX_PARTS - 1 else NEEDED)


def _fixes(finding: Finding | None) -> Iterator[Line]:
    fixes = finding.prescriptions[:_MAX_FIXES] if finding is not None else ()
    if not fixes:
        return
    frees = "frees (est.)" if any(each.frees_bytes for each in fixes) else ""
    yield BLANK
    head = "fix: 1 first; add the next if it fails again" if len(fixes) > 1 else "fix"
    yield Line(((f"  {head:<{_FIX}}  {frees:<{_FREES}}effort", QUIET),))
    for i, fix in enumerate(fixes, start=1):
        text, *rest = wrapped(_fix_text(fix), _FIX)[:2]
        size = f"~{wording.size(fix.frees_bytes)}" if fix.frees_bytes else ""
        yield Line(((f"{i} ", QUIET), (f"{set_cell_size(text, _FIX)}  {size:<{_FREES}}{fix.effort}", "")))
        yield from (Line((("  " + each, ""),)) for each in rest)


def _fix_text(fix: Prescription) -> str:
    """Return the change as code if it only sets arguments, otherwise in words."""
    calls = [_CALL.fullmatch(each) for each in fix.code.splitlines()]
    if calls and all(calls):
        return wording.line(" and ".join(f"{each[1]}({each[2]})" for each in calls if each), 2 * _FIX)
    return clause(fix.summary, _FIX)
