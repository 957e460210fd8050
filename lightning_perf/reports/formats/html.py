"""A page that loads nothing from the network."""

from lightning_perf.records import Session
from lightning_perf.reports.render.html import to_page

SUFFIX = ".html"


def draw(session: Session, show_all: bool, source: str) -> str:
    """Return the page."""
    return to_page(session, source)
