"""Phases of a loop without a Trainer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor

N_BATCHES, REST_S = 12, 0.01


class Wrapper(torch.optim.Optimizer):
    """An optimizer that calls another one."""

    def __init__(self, inner: torch.optim.Optimizer, fails_at: int | None = None) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.fails_at, self.n_steps = inner, fails_at, 0

    def step(self, closure: Any = None) -> Any:
        self.n_steps += 1
        if self.n_steps == self.fails_at:
            raise ValueError
        return self.inner.step(closure)


@pytest.mark.parametrize("fails_at", [None, 4])
def test_step_of_an_optimizer_that_calls_another_one_is_one_step(
    fails_at: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    net = nn.Linear(4, 1)
    optimizer = Wrapper(torch.optim.SGD(net.parameters(), lr=0.1), fails_at)
    doctor = PerfDoctor(schedule=None, reports=[], probe_data=False)
    for batch in doctor.steps(DataLoader(torch.ones(N_BATCHES, 4))):
        net(batch).sum().backward()
        try:
            optimizer.step()
        except ValueError:
            continue
        time.sleep(REST_S)
    doctor.close()
    assert doctor.session.run.n_optimizer_steps == N_BATCHES - (fails_at is not None)
    steady = doctor.session.steady
    assert steady.phases["other"].total_s >= REST_S * (steady.n_steps - (fails_at is not None))
