"""The lines of code that brief reports name."""

from __future__ import annotations

import msgspec
import pytest

from lightning_perf.records import Finding, Session, Verdict
from lightning_perf.reports.brief import MAX_LINES, brief_report
from lightning_perf.reports.brief_epochs import brief_epoch
from lightning_perf.reports.sites import sites, where, with_site
from lightning_perf.reports.text import report_text
from reports.sessions import starved, twelve_findings

METRICS = "43 % of step time is spent in metrics; training_step (card.py:59) spends 43 % of it in Metric.forward."


def finding(summary: str) -> Finding:
    """Return a finding with this summary."""
    return msgspec.structs.replace(starved().findings[0], code="PD509", summary=summary)


def with_first(session: Session, first: Finding) -> Session:
    """Return a session whose verdict is this finding."""
    return msgspec.structs.replace(
        session,
        findings=(first, *session.findings),
        verdict=Verdict(category="host", text=first.summary, code=first.code),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (METRICS, ["card.py:59"]),
        ("encode (links.py:66), called at links.py:79, spends 28 %", ["links.py:66", "links.py:79"]),
        ("train.py:31 and again train.py:31: rows = read(12:30)", ["train.py:31"]),
        ("a step (data/cells.py:7) of 3:2 batches at 12:30", ["data/cells.py:7"]),
        ("the cell <ipython-input-3>:5", ["<ipython-input-3>:5"]),
        ("Allocated memory on cuda:0 grows, and Model.losses (model.py:8) grows with it", ["model.py:8"]),
        ("60 % of training time is validation", []),
    ],
)
def test_sites_are_files_with_a_line(text: str, named: list[str]) -> None:
    assert sites(text) == named


def test_where_is_the_part_of_the_summary_with_the_line_or_the_line_alone() -> None:
    part, *lines = where(finding(METRICS), "43 % of step time is spent in metrics: call them less often")
    assert part == "training_step (card.py:59) spends 43 % of it in Metric.forward"
    assert lines == ["at card.py:59", "at card.py:59"]
    passes = finding("5 backward passes of a step (flat.py:56) go through the same layers; one pass is enough.")
    assert where(passes, "5 backward passes of a step: go back once") == ("at flat.py:56", "at flat.py:56")


def test_where_is_empty_if_the_headline_names_the_line_or_none_is_known() -> None:
    assert where(finding(METRICS), "training_step (card.py:59) spends 43 %") == ()
    assert where(finding("60 % of training time is validation."), "60 %") == ()


def test_a_line_is_added_to_a_text_that_has_none_if_both_fit() -> None:
    assert with_site("43 % is spent in metrics", finding(METRICS), 40) == "43 % is spent in metrics (card.py:59)"
    assert with_site("43 % is spent in metrics", finding(METRICS), 36) == "43 % is spent in metrics"
    assert with_site("in card.py:59", finding(METRICS), 40) == "in card.py:59"


def test_brief_report_says_where_below_its_headline() -> None:
    first = finding(METRICS)
    lines = report_text(brief_report(with_first(starved(), first)), 80).splitlines()
    assert lines[2].strip() == "training_step (card.py:59) spends 43 % of it in Metric.forward"
    crowded = report_text(brief_report(with_first(twelve_findings(), first), "perf_logs/demo"), 80).splitlines()
    assert len(crowded) <= MAX_LINES
    assert sum("card.py:59" in each for each in crowded) == 1


def test_report_of_an_epoch_names_the_line() -> None:
    session = with_first(starved(), finding(METRICS))
    epochs = tuple(msgspec.structs.replace(each, wall_s=40.0) for each in session.epochs)
    report = brief_epoch(msgspec.structs.replace(session, epochs=epochs), epochs[0].index)
    assert report is not None
    assert "43 % of step time is spent in metrics (card.py:59)" in report_text(report, 80)
