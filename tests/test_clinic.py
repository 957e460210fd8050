"""The clinic: causes are named, healthy trainings have no confident findings, and every case is fully described."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.rules.engine import all_rules

CLINIC = Path(__file__).parents[1] / "benchmarks" / "clinic"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the clinic forks and pins its cases")

sys.path.insert(0, str(CLINIC))
import case as clinic_case  # noqa: E402

CASES = clinic_case.read_all()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The session of each fast case."""
    file = tmp_path_factory.mktemp("clinic") / "said.json"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, str(CLINIC / "run.py"), "--fast", "--at-once", "2", "--json", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert file.exists(), done.stderr[-2000:]
    rows: list[dict[str, Any]] = json.loads(file.read_text())["none"]["outcomes"]
    return rows


def rank_of(row: dict[str, Any]) -> int | None:
    """Return the place of the first finding that names the true cause."""
    return next((place for place, one in enumerate(row["said"], 1) if one["code"] in row["expect"]), None)


@pytest.mark.clinic
def test_every_fast_case_is_diagnosed(said: list[dict[str, Any]]) -> None:
    assert [one for one in said if one["error"]] == []
    assert {one["case"] for one in said} == {case.name for case in CASES if case.is_fast}


@pytest.mark.clinic
def test_cause_is_among_the_first_three_when_a_fault_was_planted(said: list[dict[str, Any]]) -> None:
    missed = [one for one in said if one["kind"] != "healthy" and (rank_of(one) or 99) > 3]
    assert missed == []


@pytest.mark.clinic
def test_no_finding_is_confident_when_a_training_is_healthy(said: list[dict[str, Any]]) -> None:
    for one in said:
        if one["kind"] == "healthy":
            # A busy machine lowers the confidence of what it makes look slow.
            alarms = [f for f in one["said"] if f["severity"] in ("high", "medium") and f["confidence"] == "high"]
            assert alarms == [], one


def test_there_are_enough_cases_of_each_kind() -> None:
    counts = {kind: sum(case.kind == kind for case in CASES) for kind in clinic_case.FOLDERS}
    assert counts["fault"] >= 105
    assert counts["healthy"] >= 30
    assert counts["double"] >= 12


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case_names_rules_that_exist_and_can_be_fixed(case: Any) -> None:
    codes = {"PD000", *(rule.code for rule in all_rules())}  # PD000: no rule looks for its cause
    assert {*case.expect, *filter(None, [case.second])} <= codes
    assert bool(case.expect) == (case.kind != "healthy")
    assert bool(case.second) == (case.kind == "double")
    assert case.treatments or not case.fix or case.fixed_script() != case.script.read_text(encoding="utf-8")
