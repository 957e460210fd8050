"""The page as it is sent: its content, its scripts, and that text of the session cannot add markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from lightning_perf.records import Evidence, RuleOutcome, Session
from lightning_perf.reports.render import html
from lightning_perf.reports.render.html import to_page
from reports import trials as made_trials
from reports.sessions import SESSIONS, ddp, hostile, starved, too_short
from reports.test_figures import BAD, profiled, traced, with_ranks, with_timeline

SIX_MB = 6_000_000

ELEMENTS = """
html head meta title style body header p h1 h2 h3 span nav a main section figure figcaption div table thead tbody tr th
td details summary strong b code pre script ul li
"""


VOID = {"br", "meta"}


class Page(HTMLParser):
    """The elements of a page, its scripts, and the text that a browser without scripts shows.

    Tags must be closed in order.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside not in ("script", "style"):
            self.text += data
        elif inside == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)

    def policy(self) -> str:
        [found] = [a["content"] for tag, a in self.elements if tag == "meta" and a.get("http-equiv")]
        assert found is not None
        return found

    def data(self) -> Any:
        [text] = [text for attributes, text in self.scripts if attributes.get("type") == "application/json"]
        return json.loads(text)


def everything() -> Session:
    """Return a session with content for most parts of the page."""
    return msgspec.structs.replace(
        traced(),
        steady=with_timeline().steady,
        ranks=with_ranks(1024).ranks,
        model_profile=profiled().model_profile,
        trials=(made_trials.climbed(), made_trials.fruitless(), made_trials.broken()),
        loader_probe=SESSIONS["loader_probed"]().loader_probe,
        memory=SESSIONS["memory_sampled"]().memory,
        validation=ddp().validation,
    )


@pytest.mark.parametrize("make", SESSIONS.values(), ids=SESSIONS)
def test_page_is_small_enough_to_be_mailed(make: Any) -> None:
    assert len(to_page(make()).encode()) < SIX_MB


def test_page_of_a_full_session_with_a_thousand_ranks_is_small_enough_to_be_mailed() -> None:
    page = Page(to_page(everything()))
    assert len(to_page(everything()).encode()) < SIX_MB
    assert "ranks" in page.data()["figures"]


def test_page_of_a_huge_session_is_small_enough_to_be_mailed() -> None:
    session = msgspec.structs.replace(
        everything(),
        windows=traced().windows * 500,
        ranks=with_ranks(8192).ranks,
        steady=with_timeline(512).steady,
        epochs=starved().epochs * 2000,
    )
    source = to_page(session)
    assert len(source.encode()) < SIX_MB
    assert "488 earlier windows not shown" in source


def test_figures_that_would_make_it_too_large_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_FIGURES_BYTES", 100_000)
    page = Page(to_page(everything()))
    assert "ranks" not in page.data()["figures"]
    assert "timeline" in page.data()["figures"]
    assert "would make this file too large to be mailed" in page.text
    assert page.text.count("Figures not shown") == 1  # one click shows them


def test_page_shows_verdict_tables_and_findings_without_javascript() -> None:
    text = Page(to_page(starved())).text
    for expected in (
        "The loader starves the model: 54 % of the time is waiting (PD101)",
        "Time per phase: 400 steady steps in 12.3 s",
        "54.1 %",
        "6.64 s",
        "PD101 starved-by-loader",
        "limit 20 %, n 400",
        "Load in 2 workers that live on between epochs. (effort: one line, results unchanged)",
        "DataLoader(dataset, batch_size=32, num_workers=2, persistent_workers=True)",
        "speedup 1.7–2.1x",
        "no fetch blocked often enough: 3 waits, 8 needed",
        "the CPU has no clock of its own",
    ):
        assert expected in text, expected


def test_page_shows_every_section() -> None:
    text = Page(to_page(everything())).text
    parts = ("Trials", "2.31x", "Validation", "rank", "Loader", "loader alone", "Modules", "Roofline", "aten::mm")
    for part in (*parts, "Profiler windows", "Window at step 30: 3 steps, recorded", "Memory by module", "31.2 GiB"):
        assert part.lower() in text.lower(), part


def test_page_shows_why_a_figure_is_missing() -> None:
    text = Page(to_page(too_short())).text
    assert "No steady steps: 3 steps, fewer than the 10 of warm-up" in text
    assert "the run had one rank, or only one reported" in text


def test_evidence_is_folded_up_below_its_finding_with_the_first_open() -> None:
    elements = Page(to_page(starved())).elements
    found = [a for tag, a in elements if tag == "details" and "finding" in (a.get("class") or "")]
    assert [a["id"] for a in found] == ["PD101", "PD502"]
    assert ["open" in a for a in found] == [True, False]


def test_page_shows_run_verdict_time_and_fixes_and_folds_the_rest() -> None:
    source = to_page(everything(), "lightning_logs/version_0")
    order = ("PerfDoctor · lightning_logs/version_0 · 2026-01-02 03:04 UTC", "<h1>", ">data wait<", ">fix<",
             'class="finding', 'class="folded"')  # fmt: skip
    places = [source.index(expected, source.index("<body>")) for expected in order]
    assert places == sorted(places)
    folded = [attributes for tag, attributes in Page(source).elements if attributes.get("class") == "folded"]
    assert len(folded) > 5
    assert not any("open" in attributes for attributes in folded)


def test_page_lists_rules_with_their_names() -> None:
    assert "PD105 bursty-fetch" in Page(to_page(starved())).text


def test_policy_runs_the_pages_own_scripts_and_loads_nothing() -> None:
    page = Page(to_page(starved()))
    policy = dict(part.strip().split(" ", 1) for part in page.policy().split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["img-src"] == "data: blob:"
    run = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert policy["script-src"].split() == [f"'sha256-{one}'" for one in hashes]
    assert len(run) == 2


def test_page_names_nothing_to_load() -> None:
    for tag, attributes in Page(to_page(everything())).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "img"), tag
        assert not {"src", "srcset", "onclick", "onload", "onerror", "action"} & set(attributes), attributes
        assert (attributes.get("href") or "#").startswith("#")


def test_page_without_figures_needs_no_script_at_all() -> None:
    bare = msgspec.structs.replace(too_short(), run=msgspec.structs.replace(too_short().run, startup={}))
    page = Page(to_page(bare))
    assert page.scripts == []
    assert "script-src 'none'" in page.policy()


def bad_everywhere() -> Session:
    bad = BAD + "</script><!--<img src=x onerror=alert(1)>" + '"><svg onload=alert(1)>'
    session = hostile()
    finding = msgspec.structs.replace(session.findings[0], code=bad, name=bad)
    return msgspec.structs.replace(
        session,
        findings=(finding, *starved().findings),
        windows=traced(bad).windows,
        model_profile=profiled(bad).model_profile,
        trials=(msgspec.structs.replace(made_trials.climbed(), command=(bad,), code=bad),),
        run=msgspec.structs.replace(session.run, error=bad, startup={bad: 1.0}),
        outcomes=(RuleOutcome(code=bad, status="failed", reason=bad),),
    )


@pytest.mark.parametrize("make", [hostile, bad_everywhere])
def test_markup_in_names_and_messages_is_shown_as_text(make: Any) -> None:
    source = to_page(make())
    page = Page(source)
    assert {tag for tag, _ in page.elements} <= set(ELEMENTS.split())
    assert len(page.scripts) == 3
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "<script>alert(1)</script>" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.text)
    page.data()


def test_data_cannot_end_its_script() -> None:
    [text] = [text for a, text in Page(to_page(bad_everywhere())).scripts if a.get("type") == "application/json"]
    assert not set("<>&") & set(text)


def test_hundred_kilobytes_of_text_are_cut() -> None:
    finding = starved().findings[0]
    huge = "h" * 100_000
    long = msgspec.structs.replace(finding, summary=huge, evidence=(Evidence(metric=huge, value=huge, unit=huge),))
    session = msgspec.structs.replace(starved(), findings=(long,), missing={huge: huge})
    assert len(to_page(session)) < len(to_page(starved())) + 5_000


def test_many_rows_are_cut_and_counted() -> None:
    missing = {f"figure.{i:05}": "why" for i in range(5000)}
    text = Page(to_page(msgspec.structs.replace(starved(), missing=missing))).text
    assert "… and 4,800 more" in text


def test_missing_numbers_cause_no_script_error() -> None:
    session = starved()
    epoch = msgspec.structs.replace(session.epochs[0], phases={"forward": float("nan"), "backward": 1.0})
    document = Page(to_page(msgspec.structs.replace(session, epochs=(epoch,)))).data()
    assert None in [value for trace in document["figures"]["epochs"]["data"] for value in trace["y"]]


def test_page_is_the_same_each_time() -> None:
    assert to_page(everything()) == to_page(everything())


def test_scripts_cannot_be_ended_from_within() -> None:
    assert html._inline('a = "</script>"; b = "<!--"\r\n') == 'a = "<\\/script>"; b = "<\\!--"\n'


def test_page_is_named_by_the_model_when_the_session_is_in_the_current_folder() -> None:
    assert to_page(starved(), ".") == to_page(starved())
