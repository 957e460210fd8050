"""Diagnose traces that others recorded on real GPUs, with known causes; none if the files are missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

from lightning_perf.rules.engine import diagnose_trace
from lightning_perf.traces import analyze

HERE = Path(__file__).parent
FOLDER_VARIABLE = "CLINIC_TRACES"
DEFAULT_FOLDER = HERE.parents[1].parent / "shared" / "traces"


class Recorded(NamedTuple):
    """One trace.

    Attributes:
        file: Its name.
        what: What is true of it.
        expect: Codes that name its cause; empty where nothing may be said.
        said: Codes above ``info``, first first.
        verdict: The verdict's category.
        rank: Place of the first that names the cause; 1 where nothing may be said and nothing was; None where missed.
    """

    file: str
    what: str
    expect: tuple[str, ...]
    said: tuple[str, ...]
    verdict: str
    rank: int | None


def diagnosed() -> list[Recorded]:
    """Return each trace of ``traces.yml`` whose file exists, with its diagnosis."""
    folder = Path(os.environ.get(FOLDER_VARIABLE, DEFAULT_FOLDER))
    if not folder.is_dir():
        print(f"recorded traces are left out: there is no folder {folder} (set {FOLDER_VARIABLE})", file=sys.stderr)
        return []
    known = yaml.safe_load((HERE / "traces.yml").read_text(encoding="utf-8"))
    return [_diagnosed(folder / file, row) for file, row in known.items()]


def _diagnosed(path: Path, row: dict[str, str]) -> Recorded:
    expect = tuple(row.get("expect", "").split())
    if not path.exists():
        return Recorded(path.name, row["what"], expect, ("the file is missing",), "", None)
    record = diagnose_trace(analyze(path))
    said = tuple(f.code for f in record.findings if f.severity != "info" and f.category != "quality")
    verdict = record.verdict.category if record.verdict is not None else "unknown"
    if not expect:
        return Recorded(path.name, row["what"], expect, said, verdict, None if said else 1)
    rank = next((place for place, code in enumerate(said, 1) if code in expect), None)
    return Recorded(path.name, row["what"], expect, said, verdict, rank)
