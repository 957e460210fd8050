"""Phases by the annotations of Lightning's profiler."""

from pathlib import Path

import pytest

from .events import analyzed, event


def test_module_named_backward_runs_in_forward(tmp_path: Path) -> None:
    notes = [
        ("ProfilerStep#1", 0, 1000),
        ("[pl][profile][Strategy]SingleDeviceStrategy.training_step", 0, 600),
        ("[pl][module]torch.nn.modules.rnn.LSTM: encoder.backward", 100, 200),
        ("[pl][profile][Strategy]SingleDeviceStrategy.backward", 600, 300),
    ]
    phases = analyzed(tmp_path, [event("user_annotation", *note) for note in notes]).phases
    assert {phase.name: phase.host_s for phase in phases} == pytest.approx(
        {"forward": 600e-6, "backward": 300e-6, "other": 100e-6}
    )


def test_operators_count_in_the_phase_in_which_they_begin(tmp_path: Path) -> None:
    notes = [
        ("ProfilerStep#1", 0, 1000),
        ("[pl][profile][Strategy]SingleDeviceStrategy.training_step", 100, 500),
        ("[pl][profile][Strategy]SingleDeviceStrategy.backward", 600, 300),
    ]
    operators = [("aten::roll", 10, 5), ("aten::roll", 20, 5), ("aten::mm", 200, 50), ("aten::add", 210, 10)]
    events = [event("user_annotation", *note) for note in notes] + [event("cpu_op", *each) for each in operators]
    phases = analyzed(tmp_path, events).phases
    assert {phase.name: phase.n_operators for phase in phases} == {"forward": 1, "backward": 0, "other": 2}
