"""Trainings with a known fault, on a real device: a window's trace and the session have to name it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightning_perf.rules.engine import diagnose_trace
from lightning_perf.traces import analyze

from .record_traces import train
from .trainings import TRAININGS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]


@pytest.mark.parametrize("name", TRAININGS)
def test_fault_is_named_when_a_window_was_recorded(name: str, tmp_path: Path) -> None:
    training = TRAININGS[name]
    session = train(training, tmp_path)
    (window,) = session.windows
    assert window.status == "recorded", window.reason
    assert window.trace is not None
    assert window.trace.n_kernels > 0
    assert window.trace.device_name is not None or window.trace.device is not None
    live = {finding.code for finding in session.findings}
    assert live & set(training.codes), session.verdict
    (file,) = tmp_path.rglob("*.pt.trace.json.gz")
    read = diagnose_trace(analyze(file))
    assert {finding.code for finding in read.findings} & set(training.codes), read.verdict
    # The events read live and the exported file are the same recording.
    assert window.trace.n_kernels == read.n_kernels
    assert window.trace.span_s == pytest.approx(read.span_s, rel=0.02)


def test_line_is_named_when_stacks_were_recorded(tmp_path: Path) -> None:
    session = train(TRAININGS["synchronizing"], tmp_path, with_stack=True)
    (finding,) = (finding for finding in session.findings if finding.code == "PD501")
    assert "trainings.py" in finding.summary
    assert "norm_of" in finding.summary
