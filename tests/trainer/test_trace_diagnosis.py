"""Faults that only a profiler window shows, each named by its code and its line in a real training on the CPU."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.records import Finding, Session

SCHEDULE = (5, 2, 3, 1)


class ItemLoop(LightningModule):
    """Adds up single numbers in Python, each fetched with ``.item()``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        out = self.layer(batch)
        return out.mean() * self.weight_of(out.detach())

    def weight_of(self, out: torch.Tensor) -> float:
        total = 0.0
        for row in range(out.shape[0]):
            for column in range(8):
                total += out[row, column].abs().item()
        return 1.0 / (1.0 + total)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class WrittenOutAttention(LightningModule):
    """Attention with its scores in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.attend(batch.unflatten(1, (256, 32))).square().mean()

    def attend(self, tokens: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(tokens).chunk(3, dim=-1)
        scores = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(32), dim=-1)
        return scores @ value

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def diagnosed(module: LightningModule, n_features: int, make_trainer: Any, tmp_path: Path, **profiler: Any) -> Session:
    doctor = PerfDoctor(schedule=SCHEDULE, profiler=profiler, out_dir=tmp_path / "out", reports=("json",), replay=False)
    make_trainer(doctor, max_steps=60).fit(module, DataLoader(torch.randn(60 * 8, n_features), batch_size=8))
    session = doctor.session
    assert session is not None
    assert [window.status for window in session.windows] == ["recorded"], session.windows
    return session


def found(session: Session, code: str) -> Finding:
    by_code = {finding.code: finding for finding in session.findings}
    assert code in by_code, (list(by_code), session.outcomes)
    return by_code[code]


def place_of(function: Any) -> str:
    """As the profiler writes it: file and the line of the function."""
    return f"{Path(__file__).name}:{inspect.getsourcelines(function)[1]}"


def test_loop_of_tiny_operators_is_named_by_its_line_when_it_calls_item(make_trainer, tmp_path):
    session = diagnosed(ItemLoop(), 64, make_trainer, tmp_path, with_stack=True)
    finding = found(session, "PD304")
    assert place_of(ItemLoop.weight_of) in finding.summary
    assert "weight_of" in finding.summary
    # Or its .item(), which takes longer where other programs use the cores. PD102 may report these, correctly.
    assert session.verdict.code == "PD102" or place_of(ItemLoop.weight_of) in session.verdict.text
    waits = [f for f in session.findings if f.code == "PD501"]
    assert all(f.severity != "high" for f in waits)  # nothing waits on a CPU: the calls' own time is charged
    assert "timed steps" in finding.gain.basis


def test_written_out_attention_is_named_by_its_line_when_stacks_are_recorded(make_trainer, tmp_path):
    session = diagnosed(WrittenOutAttention(), 256 * 32, make_trainer, tmp_path, with_stack=True)
    finding = found(session, "PD309")
    assert place_of(WrittenOutAttention.attend) in finding.summary
    assert "256 x 256 scores" in finding.summary


def test_written_out_attention_is_found_when_stacks_are_not_recorded(make_trainer, tmp_path):
    session = diagnosed(WrittenOutAttention(), 256 * 32, make_trainer, tmp_path)
    assert "256 x 256 scores" in found(session, "PD309").summary


@pytest.mark.parametrize("with_stack", [False, True])
def test_trace_file_is_kept_under_the_name_that_the_old_tab_expects(make_trainer, tmp_path, with_stack):
    session = diagnosed(ItemLoop(), 64, make_trainer, tmp_path, with_stack=with_stack)
    (file,) = (tmp_path / "out").rglob("*.pt.trace.json.gz")
    assert file.name == Path(session.windows[0].file or "").name
    worker, nanoseconds = file.name.removesuffix(".pt.trace.json.gz").rsplit(".", 1)
    assert worker
    assert nanoseconds.isdigit()
    assert len(session.windows[0].trace.steps) == 3
