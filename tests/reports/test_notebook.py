"""Records as notebooks show them."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from lightning_perf.records import Comparison, Machine, Session, Trial
from reports.comparisons import COMPARISONS
from reports.sessions import SESSIONS, starved
from reports.trials import broken, climbed, fruitless

VOID = {"br"}


class Checks(HTMLParser):
    """Parser that checks that tags are closed in order, and collects them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(record: Session | Trial | Comparison) -> Checks:
    html = record._repr_html_()
    assert html is not None
    checks = Checks()
    checks.feed(html)
    assert checks.open == []
    return checks


EVERYTHING = {
    **{f"session {name}": make for name, make in SESSIONS.items()},
    **{f"trial {make.__name__}": make for make in (climbed, fruitless, broken)},
    **{f"comparison {name}": make for name, make in COMPARISONS.items()},
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_html_is_whole_and_holds_neither_scripts_nor_anything_to_fetch(name: str) -> None:
    checks = parsed(EVERYTHING[name]())
    assert not checks.tags & {"script", "img", "link", "iframe", "a"}
    assert checks.attributes <= {"class", "style", "open", "data-head"}


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
