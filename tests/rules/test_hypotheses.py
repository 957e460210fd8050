"""What rules ask to replay."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.rules.engine import hypotheses

from .session_builder import build_session

PADDING = {"n_batches": 64, "n_tokens": 1000, "n_padding": 800, "trimmed_tokens": 400, "bucketed_tokens": 220}
PADDED = {"padding": {**PADDING, "basis": "attention_mask"}}


def replayed(treatment: str) -> dict[str, Any]:
    speedup = {"value": 2.0, "low": 1.9, "high": 2.1}
    return {"replay": {"results": [{"treatment": treatment, "n_operators": 3, "n_rounds": 9, "speedup": speedup}]}}


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ({}, "sequence=0.40"),
        (replayed("sequence=0.42"), "sequence=0.42"),  # answered, so that nothing is replayed again
        (replayed("sequence=0.46"), "sequence=0.40"),
    ],
)
def test_a_part_that_is_nearly_the_same_is_not_replayed_again(known: dict[str, Any], asked: str) -> None:
    (found,) = hypotheses(build_session({**PADDED, **known}), select=["PD116"])
    assert found.treatment == asked


def test_gradients_that_no_optimizer_has_are_to_be_replayed_without_them() -> None:
    model = {"class_name": "Classifier", "n_trainable": 100, "n_unused_gradients": 2, "unused_gradients_in": "backbone"}

    def asked(n_unused: int) -> list[str]:
        settings = {"model": {**model, "n_unused_elements": n_unused}}
        return [one.treatment for one in hypotheses(build_session({"settings": settings}), select=["PD323"])]

    assert asked(10) == ["without-dropped"]
    assert asked(9) == []
