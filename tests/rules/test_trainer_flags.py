"""Every recommendation that a Trainer argument can hold is one in ``trainer_flags``."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.records import Finding
from lightning_perf.rules.engine import all_rules
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.without_trainer import without_trainer
from tests.rules.case_files import load_cases
from tests.rules.session_builder import build_session

CASES = sorted((Path(__file__).parent / "cases").glob("*.yml"))
NOT_APPLIED = {"profiler"}
"""Arguments that only help to find out more."""

NOT_IN_LOOPS = {
    "profiler",
    "callbacks",
    "enable_progress_bar",
    "reload_dataloaders_every_n_epochs",
    "num_sanity_val_steps",
    "val_check_interval",
}
"""Arguments for what only a Trainer has."""


def literal_arguments(code: str) -> dict[str, Any]:
    """Return the arguments of ``Trainer`` in a piece of code that are literals."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Trainer":
            found |= {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
    return found


def found_in(path: Path, **run: Any) -> list[Finding]:
    check = next(rule.check for rule in all_rules() if rule.code == path.stem)
    findings = []
    for case in load_cases(path):
        if case["expect"] == "finding":
            try:
                session = build_session(case.get("session"))
                session = msgspec.structs.replace(session, run=msgspec.structs.replace(session.run, **run))
                findings.append(check(session))
            except Skip:
                continue
    return [finding for finding in findings if finding is not None]


def test_code_with_trainer_arguments_is_found_in_the_cases() -> None:
    codes = [fix.code for path in CASES for finding in found_in(path) for fix in finding.prescriptions]
    assert len({code for code in codes if "Trainer(" in code}) > 15


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_code_that_is_a_trainer_argument_is_also_a_flag(path: Path) -> None:
    for finding in found_in(path):
        for fix in finding.prescriptions:
            if "Trainer(" not in fix.code or "…" in fix.code or "instead of" in fix.summary:
                continue  # an alternative is no flag: both together would change more than either
            arguments = literal_arguments(fix.code)
            # Arguments whose effect was not measured are withheld; a batch that is unlike the loader's has no argument.
            if fix.trainer_flags or not (is_withheld(finding, fix.safety) or "DataLoader" in fix.code):
                shown = {name: value for name, value in arguments.items() if name not in NOT_APPLIED}
                assert shown.items() <= fix.trainer_flags.items(), fix.code


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_code_of_a_loop_names_only_arguments_for_what_a_trainer_has(path: Path) -> None:
    for finding in map(without_trainer, found_in(path, has_trainer=False)):
        for fix in finding.prescriptions:
            assert set(re.findall(r"Trainer\(\.\.\., (\w+)=", fix.code)) <= NOT_IN_LOOPS, fix.code


def is_withheld(finding: Finding, safety: str) -> bool:
    return safety != "exact" and (finding.severity in ("low", "info") and finding.gain is None)
