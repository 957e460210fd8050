"""The findings of each rule in each of its cases, with all texts and numbers, compared with golden files.

Changes of numbers, thresholds and gains show in the diff of these files and must be reviewed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.records import Finding
from lightning_perf.rules.engine import diagnose
from tests.golden_files import assert_golden
from tests.rules.case_files import load_cases

from .session_builder import build_session

CASES = sorted((Path(__file__).parent / "cases").glob("*.yml"))


def _figure(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _lines_of(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity}, confidence {finding.confidence}: {finding.summary}"
    for each in finding.evidence:
        limit = "" if each.threshold is None else f", limit {_figure(each.threshold)}"
        n = "" if each.n is None else f", n {each.n}"
        yield f"  {each.metric}: {_figure(each.value)} {each.unit}".rstrip() + limit + n
    for fix in finding.prescriptions:
        yield f"  fix ({fix.treatment or 'advice'}; {fix.safety}, {fix.effort}): {fix.summary}"
        for key, value in {**fix.trainer_flags, **fix.loader_args}.items():
            yield f"    {key}={value!r}"
        yield from (f"    {line}".rstrip() for line in fix.code.splitlines())
    if finding.gain is not None:
        yield f"  gain {finding.gain.low:.4g} to {finding.gain.high:.4g}: {finding.gain.basis}"
    for phase, seconds in finding.claims.items():
        yield f"  claims {_figure(seconds)} s of {phase}"


def _answers(code: str, cases: list[dict[str, Any]]) -> Iterator[str]:
    for case in cases:
        if case["expect"] == "passed":
            continue
        session = diagnose(build_session(case.get("session")))
        yield f"== {case['name']}"
        for finding in session.findings:
            if finding.code == code:
                yield from _lines_of(finding)
        for outcome in session.outcomes:
            if outcome.code == code and outcome.reason:
                yield f"{outcome.status}: {outcome.reason}"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_answer_matches_the_golden_file_when_a_rule_runs(path: Path) -> None:
    answers = _answers(path.stem, load_cases(path))
    assert_golden(f"rules/{path.stem}.txt", "\n".join(answers) + "\n")
