"""Records as notebooks show them."""

from __future__ import annotations

import pytest

from lightning_perf.records import Comparison, Machine, Session, Trial
from reports.comparisons import COMPARISONS
from reports.sessions import SESSIONS, starved
from reports.test_html import Page
from reports.trials import broken, climbed, fruitless


def parsed(record: Session | Trial | Comparison) -> Page:
    html = record._repr_html_()
    assert html is not None
    return Page(html)


EVERYTHING = {
    **{f"session {name}": make for name, make in SESSIONS.items()},
    **{f"trial {make.__name__}": make for make in (climbed, fruitless, broken)},
    **{f"comparison {name}": make for name, make in COMPARISONS.items()},
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_html_is_whole_and_holds_neither_scripts_nor_anything_to_fetch(name: str) -> None:
    elements = parsed(EVERYTHING[name]()).elements
    assert not {tag for tag, _ in elements} & {"script", "img", "link", "iframe", "a"}
    assert {each for _, attributes in elements for each in attributes} <= {"class", "style", "open", "data-head"}


def test_session_shows_verdict_phases_and_findings() -> None:
    session = starved()
    text = parsed(session).text
    assert "The loader starves" in text
    assert "data wait" in text
    assert all(finding.code in text for finding in session.findings)


def test_finding_is_open_with_its_evidence_and_fix() -> None:
    finding = starved().findings[0]
    html = finding._repr_html_()
    assert html is not None
    assert '<details class="finding high" open>' in html
    assert finding.prescriptions[0].summary in html


def test_other_records_have_no_html() -> None:
    assert Machine(os="Linux", python="3.11")._repr_html_() is None
