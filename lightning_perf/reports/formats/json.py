"""The session itself."""

from lightning_perf.records import Session

SUFFIX = ".json"


def draw(session: Session, show_all: bool, source: str) -> str:
    """Return the whole session as JSON."""
    return session.to_json().decode()
