"""``PerfDoctor(console=…)`` and ``LIGHTNING_PERF_CONSOLE``: how much the console shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf import PerfDoctor
from lightning_perf.errors import ConfigError
from lightning_perf.reports.brief import MAX_LINES, MAX_WIDTH

from .conftest import Make
from .models import Tiny, loader


def shown_by(doctor: PerfDoctor, make_trainer: Make, capsys: pytest.CaptureFixture[str]) -> str:
    trainer = make_trainer(doctor, max_epochs=2)
    capsys.readouterr()
    trainer.fit(Tiny(), loader())
    return capsys.readouterr().out


def test_console_shows_the_brief_report_by_default(
    make_trainer: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIGHTNING_PERF_CONSOLE", raising=False)
    monkeypatch.chdir(tmp_path)
    lines = shown_by(PerfDoctor(schedule=None, out_dir="seen"), make_trainer, capsys).splitlines()
    assert lines[0].startswith("PerfDoctor  ")
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= MAX_WIDTH
    assert not any("\x1b" in line for line in lines)
    assert any("lightning-perf report seen --full" in line for line in lines)


def test_console_shows_everything_when_full_is_asked_for(
    make_trainer: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown_by(PerfDoctor(schedule=None, out_dir=tmp_path, console="full"), make_trainer, capsys)
    assert "fit finished" in text
    assert "About this measurement" in text


@pytest.mark.parametrize(("argument", "variable"), [("off", None), (None, "off"), ("off", "full")])
def test_console_stays_empty_when_it_is_off(
    make_trainer: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argument: str | None,
    variable: str | None,
) -> None:
    if variable is not None:
        monkeypatch.setenv("LIGHTNING_PERF_CONSOLE", variable)
    doctor = PerfDoctor(schedule=None, out_dir=tmp_path, console=argument)
    assert "PerfDoctor" not in shown_by(doctor, make_trainer, capsys)
    assert (tmp_path / "perf_session.json").exists()


def test_console_is_refused_when_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^console='loud': expected one of 'brief', 'full', 'off'$"):
        PerfDoctor(console="loud")
    monkeypatch.setenv("LIGHTNING_PERF_CONSOLE", "loud")
    with pytest.raises(ConfigError, match=r"^LIGHTNING_PERF_CONSOLE='loud': expected one of 'brief', 'full', 'off'$"):
        PerfDoctor()
