"""Whether a training loader can get workers during a run."""

from __future__ import annotations

import contextlib
import multiprocessing
from multiprocessing import context

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf.errors import TreatmentError
from lightning_perf.safe_loaders import require_safe_workers


def test_script_can_still_choose_a_start_method_when_a_loader_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context._default_context, "_actual_context", None)  # type: ignore[attr-defined]
    with contextlib.suppress(TreatmentError):  # Python's default may be another one than fork
        require_safe_workers(DataLoader(TensorDataset(torch.ones(4))), {"num_workers": 2})
    assert multiprocessing.get_start_method(allow_none=True) is None


def test_refusal_names_the_start_method_and_what_to_do_when_workers_would_not_be_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context._default_context, "_actual_context", multiprocessing.get_context("spawn"))  # type: ignore[attr-defined]
    with pytest.raises(TreatmentError, match="started by spawn, not by fork; set num_workers where the loader is made"):
        require_safe_workers(DataLoader(TensorDataset(torch.ones(4))), {"num_workers": 2})
