from __future__ import annotations

import msgspec
import pytest

from lightning_perf.records import Difference, Session
from lightning_perf.reports.console import session_document, to_text
from lightning_perf.reports.figures import FIGURES, figure_json
from lightning_perf.reports.render.html import to_page
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.reports.sections.earlier import change_text
from reports.sessions import SESSIONS, earlier_runs


def session() -> Session:
    return msgspec.structs.replace(SESSIONS["starved"](), earlier=earlier_runs())


def test_section_has_the_news_and_each_run_with_what_changed() -> None:
    text = to_text(session_document(session()), width=95)
    shown = text.partition("Earlier runs\n")[2].splitlines()
    assert shown[0] == "18 % slower than your last 5 runs: data wait +10.1 ms per step"
    row = "2026-01-06 08:00:00 62.0 ms backward num_workers 8 → 4, commit aaaaaaa → bbbbbbb"
    assert " ".join(shown[2].split()) == row
    assert "### Earlier runs" in to_markdown(session())


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1.094, "a slowdown of 9.4 % or more would"),
        (2.5, "a slowdown of 2.50x or more would"),
        (849.0, "earlier runs vary too much to compare this one with them"),
    ],
)
def test_section_without_news_says_what_would_have_been_found(factor: float, expected: str) -> None:
    found = msgspec.structs.replace(session(), earlier=msgspec.structs.replace(earlier_runs(""), detectable=factor))
    assert expected in to_text(session_document(found), width=120)
    with_news = msgspec.structs.replace(session(), earlier=msgspec.structs.replace(earlier_runs(), detectable=factor))
    assert expected not in to_text(session_document(with_news), width=120)


@pytest.mark.parametrize(
    ("machine", "expected"), [(1.6, "no slower than earlier runs, except for 60 % because the machine is slower;"),
                              (1.01, "no slower than earlier runs; a slowdown"), (None, "earlier runs; a slowdown")]
)  # fmt: skip
def test_section_without_news_says_how_much_slower_the_machine_makes_it(machine: float | None, expected: str) -> None:
    earlier = msgspec.structs.replace(earlier_runs(""), detectable=1.05, machine_factor=machine)
    found = msgspec.structs.replace(session(), earlier=earlier)
    assert expected in " ".join(to_text(session_document(found), width=140).split())


def test_only_commits_are_abbreviated() -> None:
    assert change_text("commit", "a" * 40, None) == "commit aaaaaaa → none"
    assert change_text("dataset_class", "D" * 40, "Images") == f"dataset class {'D' * 40} → Images"


def test_there_is_no_section_without_earlier_runs() -> None:
    assert "Earlier runs" not in to_text(session_document(SESSIONS["starved"]()), width=80)


def test_figure_stacks_the_phases_of_each_run_and_marks_changes() -> None:
    drawn = FIGURES["earlier_runs"].draw(session())
    document = figure_json(drawn)
    assert [each["name"] for each in document["data"]] == ["data wait", "forward", "backward"]
    assert document["data"][0]["y"] == [2.0] * 5 + [12.0]
    assert [shape["x0"] for shape in document["layout"]["shapes"]] == [4.5]
    assert [note["text"] for note in document["layout"]["annotations"]] == ["num_workers 8 → 4 and 1 more"]
    assert FIGURES["earlier_runs"].draw(SESSIONS["starved"]()) is None


def test_texts_of_earlier_runs_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    last = msgspec.structs.replace(
        earlier_runs().runs[-1], started_at=hostile, changes=(Difference(name=hostile, base=hostile, new=None),)
    )
    earlier = msgspec.structs.replace(earlier_runs(hostile), runs=(*earlier_runs().runs[:-1], last))
    page = to_page(msgspec.structs.replace(session(), earlier=earlier))
    assert hostile not in page
    assert "&lt;script&gt;alert(1)" in page
