"""The clinic's results as pages of the docs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import sessions
import torch
import traceml
from caps import CAPS
from recorded_traces import Recorded
from results import REFERENCE, Section, Sections, encoded, read, why_not_saved
from score import Outcome, Score, Share, score
from sessions import HandMade
from traceml import CATEGORIES, Said

from lightning_perf.probes.settings.machine import read_machine

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "docs" / "benchmarks"
BESIDE = FOLDER / "clinic-traceml.md"


class Pages(NamedTuple):
    """Where results are saved.

    Attributes:
        title: Title of the page.
        command: The command without the arguments of a run.
        page: The page.
        results: The results that it is made of.
    """

    title: str
    command: str
    page: Path
    results: Path


CLINIC = Pages(
    "The clinic: does PerfDoctor name the true cause?",
    "benchmarks/clinic/run.py",
    FOLDER / "clinic.md",
    FOLDER / "clinic.json",
)
ON_DEVICE = Pages(
    "The clinic on a GPU",
    "benchmarks/clinic/run.py --device",
    FOLDER / "clinic-device.md",
    FOLDER / "clinic-device.json",
)

_PAGE = """\
# {title}

Made by `{command}`. Each case is a small training with one known fault, two, or none. Thresholds were
tuned on the half *tune* only.

- *Named*: the place of the first finding above `info` that names the true cause.
- *Line named*: cases that mark the line that costs time, and whose first finding names this line.
- *Accused*: healthy runs with a finding of medium or high severity, unless its fix, applied and measured, gains at
  least the lower end of what it promises.
- *Promises*: measured speedups in the promised interval. *Broken*: below its lower end, or below 1.0. *Width*: median
  of upper ÷ lower end.
- *Measured*: time per step with the fault ÷ without it, medians of blocks, both without PerfDoctor, in turns, in
  processes that keep the memory that they free. Where a fix acts between steps, over whole epochs of a run with more of
  them.

Each run is a first run, with nothing in its cache. *Cap* says which abilities of the CPU were switched off. Shares are
given with Wilson's 95 % interval. All results are in [{results}]({results}).

{scores}

## Runs

{runs}
{cases}{recorded}{made}"""

_BESIDE = """\
# TraceML on the clinic's cases

Made by `python benchmarks/clinic/run.py {command}` on {machine}; {versions}.

{about}
- The category of the cause is named: {told}.
- Healthy trainings accused: {accused}.

PerfDoctor's results on the same cases, by cause rather than category, are on [the clinic's page](clinic.md).

## The map

{map}

## Cases

{cases}
"""


def text_of(sections: Sections, pages: Pages = CLINIC) -> str:
    """Return the page.

    Args:
        sections: Results by cap.
        pages: Where they are saved.
    """
    reference = sections.get(REFERENCE)
    return _PAGE.format(
        title=pages.title,
        command=pages.command,
        results=pages.results.name,
        scores=scores_of(sections),
        runs=_runs(sections.values()),
        cases="".join(_cases(section) for section in sections.values()),
        recorded=_recorded(reference.recorded if reference is not None else ()),
        made=_made(reference.made if reference is not None else ()),
    )


def save(new: Sections, names: set[str], pages: Pages = CLINIC) -> list[str]:
    """Save new sections, and the page made of all that are saved.

    Args:
        new: Results by cap.
        names: Names of all cases that exist.
        pages: Where to save them.

    Returns:
        Why some sections were not saved.
    """
    saved, refusals = read(pages.results), []
    for cap, section in new.items():
        reason = why_not_saved(saved, section, names)
        if reason:
            refusals.append(reason)
        else:
            saved[cap] = section
    if len(refusals) < len(new):
        saved = {cap: saved[cap] for cap in CAPS if cap in saved}
        pages.results.write_bytes(encoded(saved))
        if REFERENCE in saved:
            pages.page.write_text(text_of(saved, pages), encoding="utf-8")
    return refusals


def scores_of(sections: Sections) -> str:
    """Return one row per cap and half of the cases."""
    head = ("cap", "half", "named first", "named among three", "line named", "second fault among three",
            "healthy runs accused", "promises kept", "promises broken", "width")  # fmt: skip
    rows = []
    for cap, section in sections.items():
        for half in ("score", "tune"):
            of_half = [one for one in section.outcomes if one.half == half]
            if of_half:
                rows.append((cap, half, *_score_cells(score(of_half))))
    return _table(head, rows)


def _score_cells(sums: Score) -> tuple[str, ...]:
    accused, broken = str(sums.accused), str(sums.broken)
    if sums.upheld:
        accused += f"; {sums.upheld} with a confirmed speedup"
    if sums.broken.n:
        broken += f"; {sums.nearly} by less than 2 %, {sums.slower} slower than before"
    width = f"{sums.width:.2f}" if sums.width is not None else "–"
    return (*map(str, (sums.first, sums.among_three, sums.line, sums.second)), accused, str(sums.kept), broken, width)


def _runs(sections: Iterable[Section]) -> str:
    head = ("cap", "set by", "arguments", "minutes", "load before", "machine", "versions", "cases left out")
    rows = []
    for one in sections:
        set_by = " ".join(f"`{name}={value}`" for name, value in CAPS.get(one.cap, {}).items()) or "–"
        arguments = f"`{one.command}`" if one.command else "–"
        load = "–" if one.load is None else f"{one.load:.1f}"
        left_out = ", ".join(one.left_out) or "–"
        rows.append((one.cap, set_by, arguments, f"{one.minutes:.0f}", load, one.machine, one.versions, left_out))
    return _table(head, rows)


def _cases(section: Section) -> str:
    """All cases of the reference; under a cap those where something went wrong."""
    is_reference = section.cap == REFERENCE
    head = ("case", "what", "half", "expected", "said", "rank", "line", "promised", "measured", "")
    rows = [_row(one) for one in section.outcomes if is_reference or _went_wrong(one)]
    counts = {row: rows.count(row) for row in rows}  # runs of a healthy case that say the same
    cells = [(*row[:-1], f"{row[-1]} ({n} runs)".strip() if n > 1 else row[-1]) for row, n in counts.items()]
    if is_reference:
        return f"\n## Cases\n\n{_table(head, cells)}\n"
    title = f"\n## What went wrong under the cap {section.cap}\n\n"
    return title + (_table(head, cells) if cells else "Nothing.") + "\n"


def _went_wrong(one: Outcome) -> bool:
    is_missed = not one.is_healthy and one.rank != 1
    is_broken = any(promise.is_broken for promise in one.promises)
    return bool(one.error or one.alarms or is_missed or is_broken or one.is_line_named is False)


def _row(one: Outcome) -> tuple[str, ...]:
    expected = " or ".join(one.expect) + (f", then {one.second}" if one.second else "")
    said = "no diagnosis" if one.error else ", ".join(f"{s.code} {s.severity}" for s in one.said[:4]) or "healthy"
    promised = f"{one.predicted[0]:.2f} to {one.predicted[1]:.2f}" if one.predicted else "–"
    measured = f"{one.measured:.2f}" if one.measured is not None else "–"
    rank = str(one.rank) if one.rank is not None else "–" if one.is_healthy else "missed"
    line = {None: "–", True: "named", False: "missed"}[one.is_line_named]
    expected = "healthy" if one.is_healthy else expected
    return (f"`{one.case}`", one.what, one.half, expected, said, rank, line, promised, measured, _remark(one))


def _remark(one: Outcome) -> str:
    if one.is_healthy:
        tried = {a.code: a.measured for a in one.applied}
        told = [f"{said.code} promised {said.low:.2f}, measured {tried[said.code]:.2f}" for said in one.accusations
                if said.low is not None and tried.get(said.code) is not None]  # fmt: skip
        verdict = "accused" if one.alarms else "confirmed speedup" if one.accusations else ""
        return ": ".join(filter(None, [verdict, ", ".join(told)]))
    promise = next(iter(one.promises), None)
    if promise is None:
        return ""
    return "promise broken" if promise.is_broken else "promise kept" if promise.is_kept else "more than promised"


def _recorded(recorded: Sequence[Recorded]) -> str:
    if not recorded:
        return ""
    rows = [(f"`{one.file}`", one.what, " or ".join(one.expect) or "nothing", ", ".join(one.said) or one.verdict,
             str(one.rank or "missed")) for one in recorded]  # fmt: skip
    first = Share(sum(one.rank == 1 for one in recorded), len(recorded))
    return (
        f"\n## Recorded traces\n\nThe cause is named first in {first}.\n\n"
        + _table(("trace", "what", "expected", "said", "rank"), rows)
        + "\n"
    )


def _made(made: Sequence[HandMade]) -> str:
    if not made:
        return ""
    rows = [(one.code, one.what, ", ".join(one.said), str(one.rank or "missed")) for one in made]
    first = Share(sum(one.rank == 1 for one in made), len(made))
    return (
        f"\n## Sessions made by hand\n\n{sessions.__doc__ or ''}\nThe cause is named first in {first}.\n\n"
        + _table(("rule", "what", "said", "rank"), rows)
        + "\n"
    )


def beside_text_of(theirs: Sequence[Said], *, versions: str, command: str) -> str:
    """Return the page on TraceML: whether it names the category of the cause."""
    faulty = [one for one in theirs if one.case.kind != "healthy"]
    healthy = [one for one in theirs if one.case.kind == "healthy"]
    rows = [(f"`{one.case.name}`", one.case.what, " or ".join(one.case.expect) or "healthy",
             ", ".join(one.kinds) or one.error.replace("\n", " "), "yes" if one.is_right else "no")
            for one in theirs]  # fmt: skip
    categories = [(kind, codes.replace(" ", ", ")) for kind, codes in CATEGORIES.items()]
    return _BESIDE.format(
        command=command,
        machine=machine_text(),
        versions=versions,
        about=traceml.__doc__ or "",
        told=Share(sum(one.is_right for one in faulty), len(faulty)),
        accused=Share(sum(not one.is_right for one in healthy), len(healthy)),
        map=_table(("its category", "counts for"), categories),
        cases=_table(("case", "what", "cause", "TraceML said", "right"), rows),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, [":--"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def machine_text(has_device: bool = False) -> str:
    """Return the CPU with its features, the usable cores, the system, and the CUDA device if wanted."""
    machine = read_machine()
    features = " ".join(machine.cpu_features or ()) or "no known features"
    model = machine.cpu_model or "an unknown CPU"
    device = f"{torch.cuda.get_device_name()}, " if has_device else ""
    return f"{device}{model} ({features}), {machine.usable_cores:g} usable cores, {platform.system()}"


def versions_text() -> str:
    """Return the versions that matter."""
    names = ("torch", "lightning", "lightning-perf")
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names)
