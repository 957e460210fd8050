"""PerfDoctor's figures in Lightning's progress bars."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar

from lightning_perf import PerfDoctor, progress

from .conftest import Make, assert_nothing_left
from .models import Sleeps, Tiny, loader

BARS = [TQDMProgressBar, RichProgressBar]


@pytest.fixture(autouse=True)
def _always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REFRESH_S", 0.0)


def seen_by(bar_class: type) -> Any:
    """A bar that keeps what it collected, through a method of the user's own."""

    class Keeps(bar_class):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.seen: list[dict[str, Any]] = []

        def get_metrics(self, trainer: Any, pl_module: Any) -> Any:
            return {**super().get_metrics(trainer, pl_module), "own": 1}

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, *args)
            self.seen.append(self.get_metrics(trainer, None))

    return Keeps


@pytest.mark.parametrize("bar_class", BARS)
def test_bar_shows_data_wait_and_verdict_when_asked_to(make_trainer: Make, bar_class: type) -> None:
    bar = seen_by(bar_class)()
    doctor = PerfDoctor(schedule=None, progress=True)
    trainer = make_trainer(doctor, bar, enable_progress_bar=True, max_epochs=2)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader(8, Sleeps(fetch=0.05)))
    shown = bar.seen[-1]
    assert shown["own"] == 1
    assert int(shown["wait"].rstrip("%")) > 50
    assert shown["perf"].startswith("PD") or shown["perf"] in ("healthy", "unknown")
    assert "get_metrics" not in vars(bar)
    assert_nothing_left(trainer, profiler)
    assert doctor.session.probes_off == ()


@pytest.mark.parametrize("bar_class", BARS)
def test_bar_is_left_alone_when_not_asked_to(make_trainer: Make, bar_class: type) -> None:
    bar = seen_by(bar_class)()
    make_trainer(PerfDoctor(schedule=None), bar, enable_progress_bar=True).fit(Tiny(), loader())
    assert not any({"wait", "perf"} & set(shown) for shown in bar.seen)


def test_tqdm_asks_only_when_it_refreshes(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = progress.BarFigures.__call__
    monkeypatch.setattr(progress.BarFigures, "__call__", lambda self: asked.append(1) or ask(self))
    doctor = PerfDoctor(schedule=None, progress=True)
    make_trainer(doctor, TQDMProgressBar(refresh_rate=10), enable_progress_bar=True).fit(Tiny(), loader(40))
    assert len(asked) <= 6  # four refreshes, and the epoch's end


def test_training_goes_on_when_the_figures_fail(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any) -> dict[str, str]:
        raise RuntimeError("planted")

    monkeypatch.setattr(progress.BarFigures, "__call__", fails)
    doctor = PerfDoctor(schedule=None, progress=True)
    trainer = make_trainer(doctor, TQDMProgressBar(), enable_progress_bar=True)
    trainer.fit(Tiny(), loader())
    assert trainer.global_step == 8
    assert [off.probe for off in doctor.session.probes_off] == ["progress"]


def test_bar_gets_its_method_back_when_the_training_fails(make_trainer: Make) -> None:
    class Fails(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 3:
                raise ValueError("planted")
            return super().training_step(batch, batch_idx)

    bar = TQDMProgressBar()
    with pytest.raises(ValueError, match="planted"):
        make_trainer(PerfDoctor(schedule=None, progress=True), bar, enable_progress_bar=True).fit(Fails(), loader())
    assert "get_metrics" not in vars(bar)


def test_progress_without_a_bar_does_nothing(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=None, progress=True)
    make_trainer(doctor).fit(Tiny(), loader())
    assert doctor.session.probes_off == ()
