"""Rules and treatments agree on ids."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lightning_perf.rules
from lightning_perf.records import Prescription
from lightning_perf.treatments.specs import all_treatments, find
from lightning_perf.treatments.treatment import Treatment

RULES = Path(lightning_perf.rules.__file__).parent

# What users were promised, and what other tools may name.
PROMISED = {
    "loader-workers", "loader-pin-memory", "loader-persistent", "loader-prefetch", "precision-bf16", "precision-fp16",
    "matmul-precision-high", "cudnn-benchmark", "channels-last", "compile", "compile-regions", "fused-optimizer",
    "activation-checkpointing", "accumulate", "batch-size", "log-every-n", "progress-refresh", "prog-bar-off",
    "anomaly-off", "async-checkpoint", "val-less-often", "ddp-static-graph", "ddp-bucket-view", "ddp-find-unused-off",
    "expandable-segments", "threads", "flush-denormal", "limit-val-batches", "precision-bf16-true", "dataset-cache",
    "fsdp", "fsdp-checkpointing", "checkpointing-batch", "fused-attention", "precision-32",
}  # fmt: skip


def ids_in_rules() -> set[str]:
    """Every text that a rule may give as a prescription's treatment, and those bound to a name ``treatment``."""
    found: set[str] = set()
    for path in RULES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "treatment":
                found |= _texts(node.value)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).lstrip("(").startswith("treatment"):
                found |= _texts(node.value)
    return found - {""}


def _texts(tree: ast.AST) -> set[str]:
    if isinstance(tree, ast.IfExp):
        return _texts(tree.body) | _texts(tree.orelse)
    if isinstance(tree, ast.Tuple):
        return _texts(tree.elts[0])
    return {tree.value} if isinstance(tree, ast.Constant) and isinstance(tree.value, str) else set()


def test_all_promised_treatments_are_there() -> None:
    assert {treatment.id for treatment in all_treatments()} >= PROMISED


def test_every_treatment_that_a_rule_names_exists() -> None:
    ids = ids_in_rules()
    assert {"loader-workers", "precision-bf16", "precision-fp16", "compile"} <= ids
    for treatment_id in sorted(ids):
        assert find(treatment_id).id == treatment_id


@pytest.mark.parametrize("treatment", all_treatments(), ids=lambda treatment: treatment.id)
def test_each_treatment_has_a_description(treatment: object) -> None:
    assert treatment.summary
    assert treatment.when.endswith(".")
    assert treatment.acts_on in ("step", "loop")
    Prescription(treatment=treatment.id, summary="", safety=treatment.safety, effort=treatment.effort)


@pytest.mark.parametrize("treatment", all_treatments(), ids=lambda treatment: treatment.id)
def test_public_methods_are_those_that_something_calls(treatment: Treatment) -> None:
    called = {*dir(Treatment), "applies_to_loader"}
    public = {name for kind in type(treatment).__mro__ for name, value in vars(kind).items() if callable(value)}
    assert {name for name in public if not name.startswith("_")} <= called
