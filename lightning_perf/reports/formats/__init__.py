"""Formats of ``lightning-perf report``: one module each, named as the format.

``draw(session, show_all, source)`` returns the report as text. ``show_all`` adds the outcome of each rule, and
``source`` is the path that the user gave. A module is imported when its format is first used.
"""

import importlib
import pkgutil

from lightning_perf.records import Session

FORMATS: tuple[str, ...] = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def draw(name: str, session: Session, show_all: bool, source: str) -> str:
    """Return a session's report in one of ``FORMATS``."""
    text: str = importlib.import_module(f"{__name__}.{name}").draw(session, show_all, source)
    return text
