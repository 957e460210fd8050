"""An interrupt at any line of the package: everything that was patched is restored."""

from __future__ import annotations

import gc
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule

from lightning_perf import PerfDoctor, diagnosis_schedule, run
from lightning_perf.probes import plain
from lightning_perf.probes.profiler.recording import Recording
from lightning_perf.probes.sampled_steps import probe as sampled_steps
from lightning_perf.probes.telemetry.pauses import GarbagePauses
from lightning_perf.probes.timeline import action_spans
from tests.fuzzing import FUZZ, IS_TORTURE

from .conftest import Make
from .interrupts import Interrupted, Line, LineTrace, Preempted, interrupt, preempt, process_state, training_state
from .models import Manual, Tiny, loader

pytestmark = pytest.mark.usefixtures("frozen_objects")

N_SAMPLED = 12 * FUZZ if IS_TORTURE else 6
"""Lines tried per test: a fixed sample in ``make test``, more in ``make torture``."""

_RESTORING = ("seams/", "hooks.py", "diagnosis_schedule.py", "run.py", "run_reports.py", "probes/")
_ON_THE_TRAINING_THREAD = (*_RESTORING, "rules/", "reports/")


@pytest.fixture(autouse=True)
def _early_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all probes have their turn within the first dozen steps."""
    monkeypatch.setattr(sampled_steps, "ROUNDS", (5,))
    monkeypatch.setattr(sampled_steps, "MAX_SHARE", 1.0)
    monkeypatch.setattr(sampled_steps, "COUNTED_STEP", 3)
    for name, value in {"FIRST_SLOW_STEPS": 9, "FIRST_SLOW_S": 0.0, "CHECK_S": 0.0}.items():  # one diagnosis within
        monkeypatch.setattr(diagnosis_schedule, name, value)
    torch.zeros(1).requires_grad_().sum().backward()


class FailsLate(Tiny):
    """Fails in its last steps."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 10:
            raise ValueError("planted by the model")
        return super().training_step(batch, batch_idx)


class CollectsInAHook(Callback):
    """Lets Python collect garbage, by itself and on request, where nobody catches what a signal handler raises."""

    def on_train_batch_start(self, *args: Any) -> None:
        gc.enable()
        try:
            _ = [[] for _ in range(2 * gc.get_threshold()[0])]
            gc.collect()
        finally:
            gc.disable()


@pytest.fixture
def _no_collections_elsewhere() -> Iterator[None]:
    """Switch automatic collections off: others' code, e.g. ``inspect``, catches what is raised while it runs."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _train(
    make_trainer: Make, model: LightningModule, trace: LineTrace, *callbacks: Callback
) -> tuple[Any, BaseException | None]:
    doctor = PerfDoctor(schedule=(1, 1, 1, 1), reports=(), ceilings=False)
    trainer = make_trainer(*callbacks, doctor, num_sanity_val_steps=0)
    return trainer, trace.run(lambda: trainer.fit(model, loader(12), loader(2)))


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def _sampled_lines(seen: dict[Line, int], n: int, folders: tuple[str, ...] = _RESTORING) -> list[Line]:
    lines = sorted(line for line in seen if line[0].startswith(folders))
    return lines if n >= len(lines) else sorted(random.Random(n).sample(lines, n))


@pytest.mark.parametrize("make_model", [Tiny, Manual, FailsLate])
def test_everything_is_restored_when_a_line_of_ours_is_interrupted(make_trainer: Make, make_model: Any) -> None:
    counted = LineTrace()
    _train(make_trainer, make_model(), counted)
    left: dict[Line, Any] = {}
    for line in _sampled_lines(counted.seen, N_SAMPLED):
        before = process_state()
        model = make_model()
        trace = LineTrace(line)
        trainer, error = _train(make_trainer, model, trace)
        # None where Python lets nothing through: finalizers, and the hook for errors in callbacks of the collector.
        assert error is None or isinstance(error, (Interrupted, ValueError)), (line, error)
        differences = _differences(before, process_state())
        if trainer.state.status == "interrupted" and make_model is FailsLate:
            # Lightning restores its own after ``on_exception``, if that did not raise: see the next test.
            differences.pop("signal handlers", None)
            trainer._signal_connector.teardown()
        differences |= {name: value for name, value in training_state(trainer, model).items() if value}
        if differences:
            left[line] = differences
    assert not left, "\n".join(f"{line}: {differences}" for line, differences in left.items())


def test_everything_is_restored_when_the_end_of_the_last_hook_is_interrupted(make_trainer: Make) -> None:
    counted = LineTrace()
    _train(make_trainer, FailsLate(), counted)
    source, first = inspect.getsourcelines(action_spans._LastHookSpan.__exit__)
    lines = [("probes/timeline/action_spans.py", first + place) for place in range(2, len(source))]  # behind `try`
    seen = [line for line in lines if line in counted.seen]
    assert len(seen) >= 2
    for line in seen:
        before = process_state()
        trace = LineTrace(line, raise_there=preempt)
        _, error = _train(make_trainer, FailsLate(), trace)
        assert isinstance(error, Preempted)
        assert _differences(before, process_state()) == {}, line


@pytest.mark.usefixtures("_no_collections_elsewhere")
@pytest.mark.parametrize("make_model", [Tiny, FailsLate])
def test_error_of_a_signal_handler_reaches_the_user_when_a_line_of_ours_is_interrupted(
    make_trainer: Make, make_model: Any
) -> None:
    counted = LineTrace()
    _train(make_trainer, make_model(), counted, CollectsInAHook())
    for line in _sampled_lines(counted.seen, N_SAMPLED, _ON_THE_TRAINING_THREAD):
        gc.collect()  # of the last training: finalizers let nothing through
        before = process_state()
        model = make_model()
        trace = LineTrace(line, raise_there=preempt)
        trainer, error = _train(make_trainer, model, trace, CollectsInAHook())
        if not trace.has_raised:  # not all lines run each time
            continue
        assert isinstance(error, Preempted), (line, error)
        assert _differences(before, process_state()) == {}, line
        assert not any(training_state(trainer, model).values()), line


@pytest.mark.usefixtures("_no_collections_elsewhere")
def test_error_of_a_signal_handler_reaches_the_user_when_others_watch_collections(
    make_trainer: Make,
) -> None:
    _, first = inspect.getsourcelines(GarbagePauses._on_collection)
    trace = LineTrace(("probes/telemetry/pauses.py", first + 1), raise_there=preempt)
    gc.callbacks.append(others := lambda phase, info: None)
    try:
        _, error = _train(make_trainer, Tiny(), trace, CollectsInAHook())
    finally:
        gc.callbacks.remove(others)
    assert trace.has_raised
    assert isinstance(error, Preempted)


@pytest.mark.parametrize("raise_there", [interrupt, preempt])
def test_signal_handlers_are_restored_when_the_report_of_a_failed_run_is_interrupted(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, raise_there: Callable[[str], None]
) -> None:
    monkeypatch.setattr(run, "diagnose", lambda *_: raise_there("while diagnosing"))
    before = process_state()
    model = FailsLate()
    trainer = make_trainer(PerfDoctor(reports=(), every_n_epochs=9))
    with pytest.raises((Interrupted, Preempted)):
        trainer.fit(model, loader(12))
    assert _differences(before, process_state()) == {}
    assert not any(training_state(trainer, model).values())


def test_error_of_a_signal_handler_reaches_the_user_when_a_window_is_read(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "n_events", lambda _: preempt("while reading"))
    trainer = make_trainer(PerfDoctor(schedule=(1, 1, 1, 1), reports=()))
    with pytest.raises(Preempted):
        trainer.fit(Tiny(), loader(12))


def test_error_of_a_signal_handler_reaches_the_user_when_the_size_of_a_batch_is_read(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "size_reader", lambda _: preempt("while reading a size"))
    with pytest.raises(Preempted):
        make_trainer(PerfDoctor(reports=())).fit(Tiny(), loader(12))
