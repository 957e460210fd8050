"""``PerfDoctor(reports=["html", "markdown"])``: files in these formats at the end of each run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf import PerfDoctor, load
from lightning_perf.errors import ConfigError
from lightning_perf.reports.console import short_path
from lightning_perf.reports.render import html
from lightning_perf.reports.render.html import to_page
from lightning_perf.reports.render.markdown import to_markdown

from .conftest import Make
from .models import Tiny, loader


def test_page_is_written_next_to_the_session_at_the_end_of_a_run(make_trainer: Make, tmp_path: Path) -> None:
    doctor = PerfDoctor(schedule=None, reports=["json", "html"], out_dir=tmp_path)
    trainer = make_trainer(doctor)
    trainer.fit(Tiny(), loader())
    page = (tmp_path / "perf_report.html").read_text(encoding="utf-8")
    assert page == to_page(load(tmp_path), short_path(tmp_path / "perf_session.json"))
    trainer.validate(Tiny(), loader(), verbose=False)
    assert "validate finished" in (tmp_path / "perf_report_validate.html").read_text(encoding="utf-8")


def test_each_format_is_written_with_its_suffix_when_asked_for(make_trainer: Make, tmp_path: Path) -> None:
    reports = ["json", "html", "markdown"]
    make_trainer(PerfDoctor(schedule=None, reports=reports, out_dir=tmp_path)).fit(Tiny(), loader())
    assert {file.name for file in tmp_path.glob("perf_report*")} == {"perf_report.html", "perf_report.md"}
    text = (tmp_path / "perf_report.md").read_text(encoding="utf-8")
    assert text == to_markdown(load(tmp_path), is_folded=True)


def test_no_page_is_written_unless_it_is_asked_for(make_trainer: Make, tmp_path: Path) -> None:
    make_trainer(PerfDoctor(schedule=None, out_dir=tmp_path)).fit(Tiny(), loader())
    assert not list(tmp_path.rglob("*.html"))


def test_failed_page_is_recorded_and_does_not_affect_the_training(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: object, name: str = "") -> str:
        raise OSError("planted")

    monkeypatch.setattr(html, "to_page", fail)
    trainer = make_trainer(PerfDoctor(schedule=None, reports=["json", "html"], out_dir=tmp_path))
    trainer.fit(Tiny(), loader())
    assert trainer.state.finished
    assert [(one.probe, one.error) for one in load(tmp_path).probes_off] == [("html", "OSError: planted")]


def test_report_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="'console', 'tensorboard', 'json', 'upload', 'html'"):
        PerfDoctor(reports=["pdf"])
