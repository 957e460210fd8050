"""Markdown for pull requests."""

from lightning_perf.records import Session
from lightning_perf.reports.render.markdown import to_markdown

SUFFIX = ".md"


def draw(session: Session, show_all: bool, source: str) -> str:
    """Return the report with long sections folded."""
    return to_markdown(session, show_all, is_folded=True)
