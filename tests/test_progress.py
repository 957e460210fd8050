from __future__ import annotations

from types import SimpleNamespace

from tqdm import tqdm

from lightning_perf.progress import REFRESH_S, BarFigures
from lightning_perf.records import Verdict
from lightning_perf.seams import Undos, tap_progress_bar

METRICS = {"v_num": 0, "train_loss_step": 0.123, "train_loss_epoch": 0.234}


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def test_figures_are_computed_once_per_second() -> None:
    clock, asked = Clock(), []
    figures = BarFigures(lambda: asked.append(clock.s) or 0.54, lambda: None, clock)
    for _ in range(1000):
        clock.s += REFRESH_S / 100
        figures()
    assert 9 <= len(asked) <= 10


def test_figures_show_what_is_known_and_keep_it_when_it_is_not_known_for_a_moment() -> None:
    clock = Clock()
    share: float | None = None
    verdict: Verdict | None = None
    figures = BarFigures(lambda: share, lambda: verdict, clock)
    clock.s += REFRESH_S
    assert figures() == {}
    share = 0.544
    clock.s += REFRESH_S
    assert figures() == {"wait": "54%"}
    share, verdict = None, Verdict(category="data", code="PD101", text="")
    clock.s += REFRESH_S
    assert figures() == {"wait": "54%", "perf": "PD101"}
    verdict = Verdict(category="healthy", code=None, text="")
    clock.s += REFRESH_S
    assert figures() == {"wait": "54%", "perf": "healthy"}


def test_figures_are_whole_in_a_bar_of_80_columns() -> None:
    figures = BarFigures(lambda: 0.54, lambda: Verdict(category="data", code="PD101", text=""), clock := Clock())
    clock.s += REFRESH_S
    trainer = SimpleNamespace(progress_bar_callback=SimpleNamespace(get_metrics=lambda: METRICS))
    undos = Undos()
    tap_progress_bar(trainer, figures, undos)
    postfix = ", ".join(f"{name}={text}" for name, text in trainer.progress_bar_callback.get_metrics().items())
    drawn = tqdm.format_meter(720, 1440, 66.0, ncols=80, prefix="Epoch 12: ", postfix=postfix, unit="it")
    assert "wait=54%, perf=PD101" in drawn
    assert len(drawn) == 80
    undos.close()
    assert trainer.progress_bar_callback.get_metrics() == METRICS
