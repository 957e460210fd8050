"""The session itself."""

from __future__ import annotations

from lightning_perf.records import Session
from lightning_perf.reports.json import to_json


def draw(session: Session, show_all: bool, source: str) -> str:
    """Return the whole session as JSON."""
    return to_json(session)
