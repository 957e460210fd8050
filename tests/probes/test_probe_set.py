"""The set of probes: isolation, scheduling of observed steps, and what happens when measuring fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.probes.base import Probe
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.probe_set import ProbeSet


class FakeLoop:
    def __init__(self) -> None:
        self.main = SimpleNamespace(n_steps=0, is_in_batch=False)
        self.next_instrumented_step = 0
        self.is_instrumented_step = False
        self.is_frozen = False

    def freeze(self) -> None:
        self.is_frozen = True

    def batch_begins(self, batch: Any) -> None:
        self.main.is_in_batch = True

    def batch_ends(self, batch: Any = None) -> None:
        self.main.is_in_batch = False
        self.main.n_steps += 1


class FakeProbe(Probe):
    """A probe that observes the given steps and raises at one of them."""

    def __init__(self, *steps: int, fails_at: int = -1) -> None:
        self.steps, self.fails_at = list(steps), fails_at
        self.begun: list[Any] = []
        self.n_ended = self.n_closed = 0

    @property
    def next_step(self) -> int:
        return self.steps[0] if self.steps else NEVER

    def step_begins(self, batch: Any) -> None:
        if batch == self.fails_at:
            raise ValueError(f"planted at {batch}")
        self.begun.append(batch)
        self.steps.pop(0)

    def step_ends(self) -> None:
        self.n_ended += 1

    def close(self) -> None:
        self.n_closed += 1

    abandon = close


def made(**probes: FakeProbe) -> tuple[ProbeSet, FakeLoop]:
    loop: Any = FakeLoop()
    found = ProbeSet()
    found.loop, found.context = loop, SimpleNamespace(loop=loop, missing={})  # type: ignore[assignment]
    for name, probe in probes.items():
        probe.name = name  # type: ignore[misc]
        found.add(probe)
    return found, loop


def train(probes: ProbeSet, loop: FakeLoop, n_steps: int) -> list[int]:
    """As the hooks do it; the steps that were observed."""
    observed = []
    for step in range(n_steps):
        if probes.loop is None:
            break
        if loop.main.n_steps >= loop.next_instrumented_step:
            observed.append(step)
            probes.step_begins(loop, step)  # type: ignore[arg-type]
            probes.step_ends(loop, step)  # type: ignore[arg-type]
        else:
            loop.main.n_steps += 1
    return observed


def test_only_steps_that_a_probe_asks_for_are_observed() -> None:
    first, second = FakeProbe(3, 7), FakeProbe(7, 9)
    probes, loop = made(first=first, second=second)
    assert train(probes, loop, 20) == [0, 3, 7, 9]
    assert (first.begun, second.begun) == ([3, 7], [7, 9])
    assert (first.n_ended, second.n_ended) == (2, 2)
    assert loop.next_instrumented_step == NEVER


def test_next_step_is_observed_when_that_is_asked_for_within_an_observed_step() -> None:
    class Asks(FakeProbe):
        def step_ends(self) -> None:
            probes.observe_next_step()

    probes, loop = made(asks=Asks(3, 100))
    assert train(probes, loop, 20) == [0, 3, 4]


def test_probe_that_fails_is_closed_and_called_no_more_while_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = FakeProbe(2, 4, 6, fails_at=4), FakeProbe(2, 4, 6)
    probes, loop = made(broken=broken, sound=sound)
    with caplog.at_level(logging.WARNING, logger="lightning_perf"):
        train(probes, loop, 10)
    assert (broken.begun, broken.n_ended, broken.n_closed) == ([2], 1, 1)
    assert sound.begun == [2, 4, 6]
    assert probes.loop is loop
    assert probes.failures["broken"].step == 4
    assert probes.failures["broken"].error == "ValueError: planted at 4"
    assert [record.getMessage().count("'broken'") for record in caplog.records] == [1]


def test_everything_is_given_up_when_steps_cannot_be_timed() -> None:
    one, other = FakeProbe(1), FakeProbe(5)
    probes, loop = made(one=one, other=other)
    probes.switch_off("steps", RuntimeError("planted"))
    assert probes.loop is None
    assert (one.n_closed, other.n_closed) == (1, 1)
    assert loop.is_frozen
    assert probes.context.missing == {"steady": "measuring failed; see probes_off"}  # type: ignore[union-attr]
    assert train(probes, loop, 3) == []


def test_same_cause_is_logged_once_and_recorded_for_each_probe(caplog: pytest.LogCaptureFixture) -> None:
    probes, _ = made()
    with caplog.at_level(logging.WARNING, logger="lightning_perf"):
        for name in ("json", "html"):
            probes.switch_off(name, OSError(28, "No space left on device", f"/{name}"))
    assert len(caplog.records) == 1
    assert list(probes.failures) == ["json", "html"]


def test_call_gives_the_result_and_none_once_the_probe_is_off() -> None:
    probes, _ = made()
    assert probes.call("sum", sum, (1, 2)) == 3
    assert probes.call("sum", int, "no number") is None
    assert probes.call("sum", sum, (1, 2)) is None
