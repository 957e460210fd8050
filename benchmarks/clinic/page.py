"""The clinic's results as a page of the docs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from score import Outcome, score
from traces import Recorded

from lightning_perf.probes.machine import read_machine

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "benchmarks" / "clinic.md"

_PAGE = """\
# The clinic: does the doctor name the true cause?

Made by `python benchmarks/clinic/run.py {command}` in {minutes:.0f} minutes on {machine}; {versions}.

Each case is a small training with one known fault, two, or none. *Said* are the findings above `info`, in the doctor's
order; *rank* is the place of the first that names the true cause. *Measured* is the time of a step as it is ÷ mended,
medians of blocks, both without PerfDoctor; *foretold* is the interval that the finding promised. Thresholds were tuned
on the half *tune* only. Shares stand with Wilson's 95 % interval.

{scores}

## Cases

{cases}
{recorded}"""


def text_of(outcomes: Sequence[Outcome], recorded: Sequence[Recorded], *, wall_s: float, command: str) -> str:
    """The page."""
    return _PAGE.format(
        command=command,
        minutes=wall_s / 60,
        machine=_machine(),
        versions=_versions(),
        scores=_scores(outcomes),
        cases=_cases(outcomes),
        recorded=_recorded(recorded),
    )


def _scores(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for half in ("score", "tune"):
        of_half = [one for one in outcomes if one.case.half == half]
        if of_half:
            sums = score(of_half)
            rows.append((half, *map(str, (sums.first, sums.among_three, sums.accused, sums.covered, sums.second))))
    head = ("half", "named first", "named among three", "healthy runs accused", "gain as foretold",
            "second fault among three")  # fmt: skip
    return _table(head, rows)


def _cases(outcomes: Sequence[Outcome]) -> str:
    head = ("case", "what", "half", "expected", "said", "rank", "foretold", "measured", "")
    return _table(head, [_row(one) for one in outcomes])


def _row(one: Outcome) -> tuple[str, ...]:
    case = one.case
    expected = " or ".join(case.expect) + (f", then {case.second}" if case.second else "")
    said = "no diagnosis" if one.error else ", ".join(f"{f.code} {f.severity}" for f in one.said[:4]) or "healthy"
    foretold = f"{one.predicted[0]:.2f} to {one.predicted[1]:.2f}" if one.predicted else "–"
    measured = f"{one.measured:.2f}" if one.measured is not None else "–"
    remark = {None: "", True: "as foretold", False: "not as foretold"}[one.is_covered]
    if one.alarms:
        remark = "accused"
    rank = str(one.rank) if one.rank is not None else "–" if case.kind == "healthy" else "missed"
    return (f"`{case.name}`", case.what, case.half, expected or "healthy", said, rank, foretold, measured, remark)


def _recorded(recorded: Sequence[Recorded]) -> str:
    if not recorded:
        return ""
    rows = [(f"`{one.file}`", one.what, " or ".join(one.expect) or "nothing", ", ".join(one.said) or one.verdict,
             str(one.rank or "missed")) for one in recorded]  # fmt: skip
    return "\n## Recorded traces\n\n" + _table(("trace", "what", "expected", "said", "rank"), rows) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, [":--"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _machine() -> str:
    machine = read_machine()
    return f"{machine.cpu_model or 'an unknown CPU'}, {machine.usable_cores:g} usable cores, {platform.system()}"


def _versions() -> str:
    names = ("torch", "lightning", "lightning-perf")
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names)
