"""The clinic's results as a page of the docs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import sessions
import traceml
from score import Outcome, Share, score
from sessions import HandMade
from traceml import CATEGORIES, Said
from traces import Recorded

from lightning_perf.probes.machine import read_machine

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "docs" / "benchmarks"
PAGE, BESIDE = FOLDER / "clinic.md", FOLDER / "clinic-traceml.md"

_PAGE = """\
# The clinic: does the doctor name the true cause?

Made by `python benchmarks/clinic/run.py {command}` in {minutes:.0f} minutes on {machine}; {versions}.

Each case is a small training with one known fault, two, or none. *Said* are the findings above `info`, in the doctor's
order; *rank* is the place of the first that names the true cause. *Measured* is the time of a step as it is ÷ mended,
medians of blocks, both without PerfDoctor and in processes that keep what they free; *predicted* is the interval that
the finding promised. Thresholds were tuned on the half *tune* only. Shares stand with Wilson's 95 % interval.{left_out}

{scores}

## Cases

{cases}
{recorded}{made}"""

_BESIDE = """\
# The clinic's cases, told by TraceML

Made by `python benchmarks/clinic/run.py {command}` on {machine}; {versions}.

{about}
- The category of the cause is told: {told}.
- Healthy trainings accused: {accused}.

What PerfDoctor says of the same cases, the cause itself rather than its category, stands on
[the clinic's page](clinic.md).

## The map

{map}

## Cases

{cases}
"""


def text_of(
    outcomes: Sequence[Outcome],
    recorded: Sequence[Recorded],
    made: Sequence[HandMade],
    left_out: Sequence[str],
    *,
    wall_s: float,
    command: str,
) -> str:
    """The page."""
    return _PAGE.format(
        command=command,
        minutes=wall_s / 60,
        machine=_machine(),
        versions=_versions(),
        left_out=f" Left out, because this CPU has no fast 16-bit products: {', '.join(left_out)}." if left_out else "",
        scores=_scores(outcomes),
        cases=_cases(outcomes),
        recorded=_recorded(recorded),
        made=_made(made),
    )


def _scores(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for half in ("score", "tune"):
        of_half = [one for one in outcomes if one.case.half == half]
        if of_half:
            sums = score(of_half)
            rows.append((half, *map(str, (sums.first, sums.among_three, sums.accused, sums.covered, sums.second))))
    head = ("half", "named first", "named among three", "healthy runs accused", "gain as predicted",
            "second fault among three")  # fmt: skip
    return _table(head, rows)


def _cases(outcomes: Sequence[Outcome]) -> str:
    head = ("case", "what", "half", "expected", "said", "rank", "predicted", "measured", "")
    return _table(head, [_row(one) for one in outcomes])


def _row(one: Outcome) -> tuple[str, ...]:
    case = one.case
    expected = " or ".join(case.expect) + (f", then {case.second}" if case.second else "")
    said = "no diagnosis" if one.error else ", ".join(f"{f.code} {f.severity}" for f in one.said[:4]) or "healthy"
    predicted = f"{one.predicted[0]:.2f} to {one.predicted[1]:.2f}" if one.predicted else "–"
    measured = f"{one.measured:.2f}" if one.measured is not None else "–"
    remark = {None: "", True: "as predicted", False: "not as predicted"}[one.is_covered]
    if one.alarms:
        remark = "accused"
    rank = str(one.rank) if one.rank is not None else "–" if case.kind == "healthy" else "missed"
    return (f"`{case.name}`", case.what, case.half, expected or "healthy", said, rank, predicted, measured, remark)


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
    """The page on what TraceML says, by whether the category is told."""
    faulty = [one for one in theirs if one.case.kind != "healthy"]
    healthy = [one for one in theirs if one.case.kind == "healthy"]
    rows = [(f"`{one.case.name}`", one.case.what, " or ".join(one.case.expect) or "healthy",
             ", ".join(one.kinds) or one.error.replace("\n", " "), "yes" if one.is_right else "no")
            for one in theirs]  # fmt: skip
    categories = [(kind, codes.replace(" ", ", ")) for kind, codes in CATEGORIES.items()]
    return _BESIDE.format(
        command=command,
        machine=_machine(),
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


def _machine() -> str:
    machine = read_machine()
    return f"{machine.cpu_model or 'an unknown CPU'}, {machine.usable_cores:g} usable cores, {platform.system()}"


def _versions() -> str:
    names = ("torch", "lightning", "lightning-perf")
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names)
