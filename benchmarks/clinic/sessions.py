"""Diagnose hand-made sessions, for rules whose fault not every CPU can show: which finding comes first?

They are the first case with a finding in ``tests/rules/cases`` of each such rule. Live cases show that a fault is
measured and named; these show only that no other finding comes before it. PD319 is one of them because many CPUs
multiply denormal numbers as fast as others, so that a live case would have no fault there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lightning_perf.rules.engine import diagnose

REPOSITORY = Path(__file__).resolve().parents[2]
CASES = REPOSITORY / "tests" / "rules" / "cases"
NEEDS_A_DEVICE = (
    *("PD112", "PD201", "PD202", "PD204", "PD302", "PD303", "PD305", "PD306", "PD307", "PD310", "PD319", "PD320"),
    *("PD401", "PD402", "PD403", "PD404", "PD406", "PD407", "PD410", "PD501", "PD702", "PD706", "PD707", "PD708"),
    *("PD801", "PD802", "PD804", "PD805", "PD806", "PD807", "PD808", "PD809", "PD810"),
)


class HandMade(NamedTuple):
    """One session.

    Attributes:
        code: The rule that it is made for.
        what: The case's name.
        said: Codes of all findings, first first; those about the measurement left out.
        rank: Place of the code; None where it was not said.
    """

    code: str
    what: str
    said: tuple[str, ...]
    rank: int | None


def diagnosed() -> list[HandMade]:
    """All of them."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.rules.session_builder import build_session

    rows = []
    for code in NEEDS_A_DEVICE:
        known: list[dict[str, Any]] = yaml.safe_load((CASES / f"{code}.yml").read_text(encoding="utf-8"))
        case = next(one for one in known if one["expect"] == "finding")
        session = diagnose(build_session(case.get("session")))
        said = tuple(finding.code for finding in session.findings if finding.category != "quality")
        rows.append(HandMade(code, case["name"], said, said.index(code) + 1 if code in said else None))
    return rows
