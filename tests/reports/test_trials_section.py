"""The ladder as reports show it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
import pytest
from tensorboard.plugin_util import markdown_to_safe_html

from lightning_perf.records import ArmRun, ArmVerdict, Interval, Trial
from lightning_perf.reports.cells import Cell
from lightning_perf.reports.console import session_document, to_text, trial_document
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.reports.sections import trials as trial_rows
from lightning_perf.reports.wording import times
from reports.sessions import starved
from reports.trials import broken, climbed, fruitless
from tests.golden_files import assert_golden

TRIALS: dict[str, Callable[[], Trial]] = {"climbed": climbed, "fruitless": fruitless, "broken": broken}


def texts(row: Sequence[Cell]) -> tuple[str, ...]:
    """Return the cells of a row as text."""
    return tuple(cell if isinstance(cell, str) else cell.text for cell in row)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", TRIALS)
def test_trial_report_matches_its_golden_file(name: str, width: int) -> None:
    assert_golden(f"reports/trial_{name}_{width}.txt", to_text(trial_document(TRIALS[name]()), width))


@pytest.mark.parametrize("name", TRIALS)
def test_trial_in_markdown_matches_its_golden_file(name: str) -> None:
    text = to_markdown(msgspec.structs.replace(starved(), findings=(), trials=(TRIALS[name](),)))
    assert_golden(f"reports/trial_{name}.md", text)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", TRIALS)
def test_trial_report_stays_within_the_width(name: str, width: int) -> None:
    pasted = {line.strip() for line in TRIALS[name]().code.splitlines()}
    lines = to_text(trial_document(TRIALS[name]()), width).splitlines()
    assert [line for line in lines if len(line) > width and line.strip() not in pasted] == []


def test_trial_report_ends_with_what_to_paste_whole_and_as_given() -> None:
    trial = climbed()
    text = to_text(trial_document(trial), 60)
    for line in (*trial.code.splitlines(), *trial.yaml.splitlines()):
        assert f"    {line}\n" in text
    assert text.rstrip().endswith("precision: bf16-mixed")


def test_run_report_shows_the_trials_of_a_session() -> None:
    session = msgspec.structs.replace(starved(), trials=(climbed(),))
    text = to_text(session_document(session), 80)
    assert "2.31x faster (95 % CI 2.28–2.34) with loader-workers=4, precision-bf16" in text
    assert text.index("PD502 logging-every-step") < text.index("Trial of python train.py") < text.index("overhead")


def test_every_rung_shows_speedup_interval_step_gain_prediction_memory_and_losses() -> None:
    row = texts(trial_rows.ladder_rows(climbed())[2])
    assert row == (
        "+ precision-bf16", "2.31x (2.28–2.34)", "1.26x", "up to 1.6x", "690 MiB", "in noise", "improved",
    )  # fmt: skip


def test_every_treatment_is_listed_with_its_result_or_reason() -> None:
    reasons = dict(trial_rows.left_out(climbed()))
    assert reasons["channels-last"] == "failed: RuntimeError: out of memory: tried to allocate 3.2 GiB, 1.1 GiB free"
    assert reasons["fused-optimizer"] == "not tried: the optimizer is fused already"
    assert set(reasons) == {"log-every-n=50", "batch-size=256", "compile", "channels-last", "fused-optimizer"}


def test_facts_say_so_when_figures_are_of_whole_epochs() -> None:
    whole = msgspec.structs.replace(climbed(), basis="wall")
    assert "whole epochs, including time between steps" in trial_rows.trial_facts(whole)
    assert not any("whole epochs" in fact for fact in trial_rows.trial_facts(climbed()))


def test_headline_reports_no_speedup_when_the_baseline_is_best() -> None:
    baseline, arm = fruitless().arms
    same = msgspec.structs.replace(arm, verdict="no_change", speedup=Interval(value=1.0, low=0.99, high=1.01))
    trial = msgspec.structs.replace(fruitless(), arms=(baseline, same))
    assert trial_rows.headline(trial) == "No treatment made this training measurably faster"
    assert trial_rows.pasted(fruitless()) == []


def test_headline_has_the_reason_when_nothing_was_compared() -> None:
    headline = trial_rows.headline(fruitless())
    assert headline == "No treatment was compared with the baseline: an interval needs 2 runs of each arm"
    assert not any("noise" in fact for fact in trial_rows.trial_facts(fruitless()))


def test_headline_has_the_reason_when_the_baseline_failed() -> None:
    assert "ModuleNotFoundError: No module named 'torchvision'" in trial_rows.headline(broken())


def test_headline_names_the_best_when_its_speedup_over_the_baseline_could_not_be_measured() -> None:
    trial = climbed()
    arms = tuple(msgspec.structs.replace(arm, speedup=None) for arm in trial.arms)
    headline = trial_rows.headline(msgspec.structs.replace(trial, arms=arms))
    assert headline.startswith("Faster with loader-workers=4, precision-bf16, the speedup over the baseline could not")


def test_headline_reports_that_nothing_was_measured_when_only_the_baseline_ran() -> None:
    alone = msgspec.structs.replace(fruitless(), arms=fruitless().arms[:1])
    assert trial_rows.headline(alone) == "No treatment was measured"


def test_trial_report_has_no_control_characters_when_a_message_is_hostile() -> None:
    text = to_text(trial_document(broken()), 80)
    assert "[bold]x[/bold]" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    shown = markdown_to_safe_html(to_markdown(msgspec.structs.replace(starved(), trials=(broken(),))))
    assert "\x1b" not in shown


def test_trial_in_markdown_has_tables_of_at_most_five_columns() -> None:
    text = to_markdown(msgspec.structs.replace(starved(), trials=(climbed(),)))
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert {len(re.findall(r"(?<!\\)\|", row)) - 1 for row in table.splitlines()} <= {2, 4, 5}
    assert "```yaml\ntrainer:\n  precision: bf16-mixed\n```" in text


def test_trial_report_is_plain_ascii_when_the_output_is() -> None:
    text = to_text(trial_document(climbed()), 80, "ascii")
    text.encode("ascii")
    assert "2.31x" in text
    assert "- log-every-n=50" in text


@pytest.mark.parametrize(
    ("value", "shown"), [(1.0, "1.00x"), (9.994, "9.99x"), (12.34, "12.3x"), (123.4, "123x"), (float("nan"), "n/a")]
)
def test_ratio_has_three_digits(value: float, shown: str) -> None:
    assert times(value) == shown


def test_interval_is_left_out_when_it_is_too_wide() -> None:
    arm = msgspec.structs.replace(climbed().arms[3], speedup=Interval(value=2.28, low=1e-4, high=97516.0))
    row = trial_rows.alone_rows(msgspec.structs.replace(fruitless(), arms=(arm,), ladder=()))[0]
    assert texts(row)[1] == "2.28x (unknown)"


@pytest.mark.parametrize("verdict", ["improved", "regressed", "no_change", "inconclusive", "failed"])
def test_every_verdict_has_its_words(verdict: ArmVerdict) -> None:
    arm = msgspec.structs.replace(climbed().arms[3], verdict=verdict)
    trial = msgspec.structs.replace(fruitless(), arms=(arm,), ladder=())
    assert texts(trial_rows.alone_rows(trial)[0])[-1] == verdict.replace("_", " ")


def test_compile_time_is_shown_with_the_steps_after_which_it_pays() -> None:
    arms = climbed().arms
    arm = msgspec.structs.replace(arms[2], id="compile", compile_s=42.0, pays_after_steps=1200)
    trial = msgspec.structs.replace(climbed(), arms=(*arms, arm))
    assert trial_rows.compile_facts(trial) == ["compile compiles for 42.0 s, which pays after 1,200 steps"]
    planned = msgspec.structs.replace(trial, planned_steps=90_000)
    text = " ".join(to_text(trial_document(planned), 120).split())
    assert "compile compiles for 42.0 s, which pays after 1,200 steps (90,000 planned)" in text


def test_throughput_by_batch_size_is_shown_when_it_was_searched() -> None:
    def searched(times: int, step_s: float, **others: object) -> ArmRun:
        blocks = (step_s,) if step_s else ()
        fields = {"repeat": 0, "position": times, "status": "ok", "stage": -1, "block_means_s": blocks} | others
        return ArmRun(arm=f"a+batch-size=x{times}", **fields)  # type: ignore[arg-type]

    below = ArmRun(arm="a", repeat=0, position=0, status="ok", block_means_s=(0.1,))
    failed = searched(8, 0.0, status="failed", reason="out of memory")
    trial = msgspec.structs.replace(climbed(), runs=(below, searched(2, 0.15), searched(4, 0.25), failed))
    text = trial_rows.batch_fact(trial)
    assert text == ("relative samples/s by batch size: 2x: 1.33x, 4x: 1.60x, 8x: out of memory")
    assert text in " ".join(to_text(trial_document(trial), 120).split())
    assert trial_rows.batch_fact(climbed()) == ""
