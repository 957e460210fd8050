from __future__ import annotations

import msgspec
import pytest

from lightning_perf.records import Difference, Interval, TimeChange
from lightning_perf.reports.console import to_text
from lightning_perf.reports.render.markdown import render
from lightning_perf.reports.sections import comparison as rows
from lightning_perf.reports.sections.comparison import comparison_document
from reports.comparisons import COMPARISONS, alike, hostile, slower
from tests.golden_files import assert_golden


@pytest.mark.parametrize("name", COMPARISONS)
def test_console_is_as_before(name: str) -> None:
    assert_golden(f"reports/comparison_{name}_80.txt", to_text(comparison_document(COMPARISONS[name]()), 80))


@pytest.mark.parametrize("name", COMPARISONS)
def test_markdown_is_as_before(name: str) -> None:
    assert_golden(f"reports/comparison_{name}.md", render(comparison_document(COMPARISONS[name]()), is_folded=True))


def test_headline_names_the_step_and_the_phase_when_it_is_slower() -> None:
    assert rows.headline(slower()) == (
        "Slower: time per step is 12.0 % longer (95 % CI +8.0 % to +16.0 %); mostly data wait (+5.50 ms)"
    )


def test_headline_names_the_time_between_steps_when_only_that_changed() -> None:
    step, wall = alike().times
    wall = msgspec.structs.replace(wall, change="slower", ratio=Interval(value=1.5, low=1.4, high=1.6))
    headline = rows.headline(msgspec.structs.replace(alike(), times=(step, wall)))
    assert headline.startswith("Slower: wall time per step is 50.0 % longer")


def test_headline_reports_a_missing_interval() -> None:
    step = TimeChange(name="step", base_s=0.1, new_s=0.2, reason="too few steps")
    headline = rows.headline(msgspec.structs.replace(alike(), times=(step,)))
    assert headline == "Inconclusive: time per step was 100 ms, now 200 ms; too few steps"


def test_phases_that_hardly_changed_are_left_out() -> None:
    assert [row[0] for row in rows.time_rows(slower())] == [
        "time per step", "wall time per step", "data wait", "forward", "validation",
    ]  # fmt: skip


def test_differences_beyond_the_limit_are_counted() -> None:
    many = [Difference(name=str(i), base=None, new="x") for i in range(rows.MAX_DIFFERENCES + 3)]
    assert rows.difference_rows(many)[-1][0].startswith("and 3 more")


def test_markdown_shows_foreign_text_unchanged() -> None:
    text = render(comparison_document(hostile()), is_folded=True)
    assert "<script>" not in text
    assert "\x1b" not in text


def test_ratio_is_shown_as_a_factor_when_a_percentage_is_too_large() -> None:
    huge = TimeChange(name="step", base_s=0.01, new_s=0.3, ratio=Interval(value=30, low=20, high=45), change="slower")
    assert "30.0x as long (95 % CI 20.0x to 45.0x)" in rows.headline(msgspec.structs.replace(alike(), times=(huge,)))


def test_a_phase_that_is_gone_changed_by_all_of_it() -> None:
    assert rows.change(0.3, 0.0).text == "−100.0 %"


def test_headline_reports_varying_runs_when_the_interval_is_too_wide() -> None:
    wide = TimeChange(name="step", base_s=0.1, new_s=0.05, ratio=Interval(value=0.5, low=0.001, high=300.0))
    headline = rows.headline(msgspec.structs.replace(alike(), times=(wide,)))
    assert headline == ("Inconclusive: time per step was 100 ms, now 50.0 ms (the runs vary too much to compare them)")
