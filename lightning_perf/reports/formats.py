"""Formats of reports, for ``lightning-perf report`` and the end of a run.

The renderer of a format is imported when it is first used.
"""

from collections.abc import Callable
from typing import NamedTuple

from lightning_perf.records import Session


class Format(NamedTuple):
    """A format of reports.

    Attributes:
        suffix: Suffix of the file that a run writes.
        draw: ``draw(session, show_all, source)`` returns the report as text. ``show_all`` adds the outcome of each
            rule, and ``source`` is the path that the user gave.
    """

    suffix: str
    draw: Callable[[Session, bool, str], str]


def _html(session: Session, show_all: bool, source: str) -> str:
    from .render.html import to_page

    return to_page(session, source)


def _json(session: Session, show_all: bool, source: str) -> str:
    return session.to_json().decode()


def _markdown(session: Session, show_all: bool, source: str) -> str:
    """Return Markdown for pull requests, with long sections folded."""
    from .render.markdown import to_markdown

    return to_markdown(session, show_all, is_folded=True)


FORMATS = {"html": Format(".html", _html), "json": Format(".json", _json), "markdown": Format(".md", _markdown)}
RUN_FORMATS = tuple(name for name in FORMATS if name != "json")
"""Formats that ``PerfDoctor(reports=...)`` writes at the end of a run. JSON is the session, which it writes itself."""
