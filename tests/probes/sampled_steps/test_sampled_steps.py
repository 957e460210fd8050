"""The schedule of sampled steps, with a fake loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf.options import DoctorOptions
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.model import flops
from lightning_perf.probes.sampled_steps import probe as sampled_steps
from lightning_perf.probes.sampled_steps.probe import COUNTED_STEP, ROUNDS, SampledSteps
from lightning_perf.probes.sampled_steps.tracing import PassiveMode, current_mode, leave_mode
from tests.fakes import FakeClock


class Fit:
    """Steps of a linear layer, observed as the probe asks for it."""

    def __init__(self, **options: Any) -> None:
        self.n_left_out = 0
        self.errors: list[tuple[str, Exception]] = []
        self.loop = SimpleNamespace(
            main=SimpleNamespace(n_steps=0, leave_out=self._leave_out),
            timeline=SimpleNamespace(phase_listener=None, phase=lambda: "forward"),
            is_profiling=False,
            first_step_end_ns=0,
            on_record_end=None,
            listen=self._listen,
            make_event=lambda: None,
        )
        strategy = type("SingleDeviceStrategy", (), {"root_device": torch.device("cpu")})()
        trainer, self.module = (
            SimpleNamespace(strategy=strategy, optimizers=[]),
            nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        )
        run = SimpleNamespace(
            trainer=trainer, pl_module=self.module, loop=self.loop, now_ns=FakeClock(), missing={},
            options=DoctorOptions(**options), probes=SimpleNamespace(switch_off=self._fails),
        )  # fmt: skip
        self.probe = SampledSteps(run)  # type: ignore[arg-type]

    def _leave_out(self) -> None:
        self.n_left_out += 1

    def _listen(self, listener: Any) -> None:
        self.loop.timeline.phase_listener = listener

    def _fails(self, kind: str, error: Exception) -> None:
        self.errors.append((kind, error))

    def step(self) -> bool:
        """Run one step; return whether it was sampled."""
        before = self.n_left_out
        batch = torch.ones(3, 2)
        if self.loop.main.n_steps >= self.probe.next_step:
            self.probe.step_begins(batch)
        loss = torch.zeros(())
        for name in ("training_step", "backward"):
            if self.loop.timeline.phase_listener is not None:
                self.loop.timeline.phase_listener.enters(name)
            if name == "training_step":
                loss = self.module(batch).sum()
            else:
                loss.backward()
            if self.loop.timeline.phase_listener is not None:
                self.loop.timeline.phase_listener.leaves(name)
        self.loop.main.n_steps += 1
        if self.loop.on_record_end is not None:
            self.loop.on_record_end()
        return self.n_left_out > before

    def until(self, n_steps: int) -> list[int]:
        """Run up to so many steps; return the sampled ones."""
        return [i for i in range(self.loop.main.n_steps, n_steps) if self.step()]


def test_one_step_is_counted_and_each_round_samples_a_step_per_kind() -> None:
    fit = Fit()
    assert fit.until(ROUNDS[0] + 10)[:3] == [COUNTED_STEP, ROUNDS[0], ROUNDS[0] + 1]
    assert fit.probe.profile is not None
    assert fit.probe.profile.step == COUNTED_STEP
    assert fit.probe.profile.reads_batch is True
    assert fit.probe.module_times() is not None
    assert fit.probe.sync_calls() is not None
    assert fit.probe.next_step == ROUNDS[1]
    assert fit.errors == []


@pytest.mark.parametrize(
    ("options", "first"), [({"module_depth": 0}, COUNTED_STEP), ({"arithmetic": False}, ROUNDS[0])]
)
def test_kinds_are_left_out_when_options_say_so(options: dict[str, Any], first: int) -> None:
    fit = Fit(**options)
    assert fit.until(ROUNDS[0] + 1) == [first]


def test_other_kinds_go_on_when_one_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(sampled_steps.ModuleTimes, "open", broken)
    fit = Fit()
    fit.until(ROUNDS[0] + 10)
    assert [kind for kind, _ in fit.errors] == ["modules"]
    assert fit.probe.module_times() is None
    assert fit.probe.sync_calls() is not None
    assert fit.loop.timeline.phase_listener is None
    assert fit.loop.on_record_end is None


def test_counted_step_is_kept_when_the_second_one_cannot_confirm_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_steps.ResultTracker, "has_found", lambda _: True)
    fit = Fit()
    fit.until(COUNTED_STEP + 1)
    monkeypatch.setattr(flops, "MAX_COST_S", -1.0)
    assert fit.until(COUNTED_STEP + 5) == [COUNTED_STEP + 1]
    fit.probe.before_report(is_last=True)
    assert fit.probe.profile is not None
    assert list(fit.probe.profile.missing) == ["known_results"]
    assert not fit.probe.missing


def test_tracer_is_closed_at_the_next_step_when_a_users_mode_was_above_it() -> None:
    fit = Fit(arithmetic=False)
    fit.until(ROUNDS[0] + 1)
    users = PassiveMode()
    fit.probe.step_begins()  # traces operators
    users.__enter__()
    fit.loop.main.n_steps += 1
    fit.loop.on_record_end()
    assert fit.probe.next_step == 0
    leave_mode(users)
    fit.step()
    assert current_mode() is None
    assert fit.probe.next_step > 0


def test_nothing_is_sampled_after_the_end() -> None:
    fit = Fit()
    fit.until(COUNTED_STEP)
    fit.probe.step_begins(torch.ones(3, 2))
    fit.probe.close()
    assert (fit.probe.next_step, fit.loop.timeline.phase_listener, fit.loop.on_record_end) == (NEVER, None, None)
    assert current_mode() is None
