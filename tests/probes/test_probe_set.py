"""The set of probes: isolation, scheduling of observed steps, and what happens when measuring fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.probes.base import STAGES, Probe, RunContext, all_probes
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.probe_set import ProbeSet
from lightning_perf.probes.telemetry.energy import Rates
from lightning_perf.records import Machine, Replay, Session


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


def test_error_is_recorded_when_its_class_cannot_give_a_message() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise KeyError("planted")

    def fail() -> None:
        raise Unprintable

    probes, _ = made()
    assert probes.call("own", fail) is None
    assert probes.failures["own"].error == "Unprintable: "


def test_each_probe_follows_those_that_it_needs() -> None:
    names = [kind.name for kind in all_probes()]
    assert len(names) == len(set(names)) > 10
    for kind in all_probes():
        assert all(names.index(needed) < names.index(kind.name) for needed in kind.after)
        assert set(kind.stages) <= set(STAGES)
        assert not kind.field or kind.field in Session.__struct_fields__


class Toy(Probe):
    """What a new probe looks like: it fills a field of the session, or says why it cannot."""

    name, field, reason = "toy", "collections", "nothing was collected"
    stages = ("fit",)
    value: Any = None

    def record(self) -> Any:
        return self.value


class Later(Toy):
    name, field, reason = "later", "replay", "nothing was replayed"
    after = ("toy",)
    value = Replay(operators_s=None, n_operators=0, results=(), took_s=0.0, budget_s=0.0)


def opened(monkeypatch: pytest.MonkeyPatch, stage: str = "fit") -> ProbeSet:
    monkeypatch.setattr("lightning_perf.probes.probe_set.all_probes", lambda: (Toy, Later))
    loop = FakeLoop()
    loop.main.own_median_ns = lambda: 0.0
    measured = {"own_ns": lambda: (0, 0), "n_spans": lambda: 0, "validation": loop.main, "backed_off": ()}
    vars(loop).update(measured)
    context = SimpleNamespace(
        stage=stage, loop=loop, now_ns=lambda: 0, missing={}, machine=Machine(os="", python=""),
        wall_s=lambda: 1.0, rates=Rates(),
    )  # fmt: skip
    probes = ProbeSet()
    probes.begin(context)  # type: ignore[arg-type]
    probes.open_all()
    return probes


def test_session_has_what_a_probe_records_and_its_reason_without() -> None:
    with pytest.MonkeyPatch.context() as patch:
        session = opened(patch).session("finished")
    assert session.run.status == "finished"
    assert session.replay == Later.value
    assert session.missing == {"collections": "nothing was collected"}
    assert session.probes_off == ()


@pytest.mark.parametrize("method", ["part", "reasons", "record"])
def test_session_keeps_the_parts_of_others_when_a_probe_cannot_give_its_own(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("planted")

    probes = opened(monkeypatch)
    monkeypatch.setattr(Toy, method, fails)
    monkeypatch.setattr(Later, method, getattr(Probe, method) if method != "record" else lambda self: self.value)
    session = probes.session()
    assert session.replay == Later.value
    assert list(probes.failures) == ["toy"]


def test_reason_is_the_failure_when_a_probe_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run: RunContext) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(Toy, "open", fails)
    monkeypatch.setattr(Later, "open", classmethod(lambda cls, run: cls(run)))
    session = opened(monkeypatch).session()
    assert session.missing == {"collections": "measuring failed; see probes_off"}
    assert session.replay == Later.value


def test_probe_is_not_opened_in_other_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = opened(monkeypatch, stage="test")
    assert probes.find(Toy) is None
    assert probes.session().missing == {"collections": "nothing was collected", "replay": "nothing was replayed"}


def test_backward_is_watched_until_the_last_probe_leaves() -> None:
    class Watches(FakeProbe):
        n = 0

        def before_backward(self) -> None:
            self.n += 1

    one, other = Watches(), Watches()
    probes, loop = made(one=one, other=other)
    untimed: list[Any] = []
    loop.leave_own_hooks_untimed = untimed.extend  # type: ignore[attr-defined]
    for leaving in (one, other):
        probes.notify("before_backward")
        probes.leave_backward(leaving)
        assert probes.watches_backward == (leaving is one)
    probes.notify("before_backward")
    assert (one.n, other.n) == (1, 2)
    assert untimed == ["on_before_backward", "on_after_backward", "on_before_zero_grad"]
