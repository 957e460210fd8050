"""Step time on one batch for the loader probe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.records import LoaderProbe
from lightning_perf.trials import data
from lightning_perf.trials.data import MIN_CEILING_STEPS, _step_time, probe_command
from lightning_perf.trials.job import Result
from lightning_perf.trials.runner import Ended
from tests.rules.session_builder import build_session

UNSTEADY = {"block_means_s": "the halves of the run differ"}


def ended(**fields: Any) -> Ended:
    """Return a run on one batch."""
    result = Result(status="ok", **fields)
    return Ended(code=0, reason="", wall_s=1.0, result=result, events=frozenset(), log="")


def test_step_is_the_median_of_its_blocks_when_they_are_steady() -> None:
    steady = ended(block_means_s=(0.010, 0.011, 0.030), n_steps=60, usual_step_s=0.2)
    assert _step_time(steady) == (0.011, "training on one batch, 60 steps")


def test_step_is_the_median_of_all_steps_when_the_run_was_not_steady() -> None:
    step_s, basis = _step_time(ended(n_steps=MIN_CEILING_STEPS, usual_step_s=0.012, missing=UNSTEADY))
    assert step_s == 0.012
    assert basis == f"training on one batch, {MIN_CEILING_STEPS} steps; the halves of the run differ"


def test_step_counts_for_each_batch_when_gradients_are_accumulated() -> None:
    step_s, _ = _step_time(ended(n_steps=50, usual_step_s=0.012, missing=UNSTEADY, batches_per_step=4))
    assert step_s == pytest.approx(0.003)


@pytest.mark.parametrize("fields", [{"n_steps": MIN_CEILING_STEPS - 1, "usual_step_s": 0.012}, {"n_steps": 50}])
def test_step_time_is_unknown_when_steps_are_few(fields: dict[str, Any]) -> None:
    assert _step_time(ended(missing=UNSTEADY, **fields)) == (None, "not measured: the halves of the run differ")


def test_session_says_why_the_step_time_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = build_session({"missing": {"steady": "nothing was trained"}})
    session = msgspec.structs.replace(session, steady=None, loader_probe=LoaderProbe(status="measured"))
    monkeypatch.setattr(data, "_ceiling", lambda *_: (None, "not measured: the loss became inf at batch 8"))
    monkeypatch.setattr(data, "_probed", lambda *_: session)
    saved = probe_command([sys.executable, "train.py"], tmp_path, 5.0)
    assert saved.missing["steady"] == "training on one batch: not measured: the loss became inf at batch 8"
