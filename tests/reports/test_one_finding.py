"""A finding has the same parts in the same order in every form."""

from __future__ import annotations

import re
from html import unescape

import pytest

from lightning_perf.reports.console import session_document, to_text
from lightning_perf.reports.render.html import to_page
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.reports.text import to_html
from reports.sessions import starved

PARTS = (
    "high",
    "PD101 starved-by-loader",
    "speedup 1.7–2.1x, diagnosis certain",
    "One process makes a batch in 17.1 ms",
    "share of the step waiting for data",
    "54 %",
    "limit 20 %, n 400",
    "Load in 2 workers that live on between epochs. (effort: one line, results unchanged)",
    "DataLoader(dataset, batch_size=32, num_workers=2, persistent_workers=True)",
    "waiting is exclusive; two workers make a batch every 8.6 ms",
)


def plain(html: str) -> str:
    return unescape(re.sub(r"<style>.*?</style>|<script.*?</script>|<[^>]+>", " ", html, flags=re.DOTALL))


FORMS = {
    "console": lambda: to_text(session_document(starved()), width=100),
    "markdown": lambda: to_markdown(starved()),
    "folded markdown": lambda: to_markdown(starved(), is_folded=True),
    "page": lambda: plain(to_page(starved())),
    "notebook": lambda: plain(to_html(starved()) or ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_finding_has_the_same_parts_in_the_same_order(form: str) -> None:
    text = re.sub(r"\s+", " ", FORMS[form]())
    at = text.index("Findings")
    for part in PARTS:
        assert part in text[at:], part
        at = text.index(part, at) + len(part)
