"""Formats of reports, for ``lightning-perf report`` and the end of a run: one module each, named as the format.

``draw(session, show_all, source)`` returns the report as text. ``show_all`` adds the outcome of each rule, and
``source`` is the path that the user gave. ``SUFFIX`` is that of the file that a run writes. A module is imported when
its format is first used.
"""

import importlib
import pkgutil
from typing import Any

from lightning_perf.records import Session

FORMATS: tuple[str, ...] = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
RUN_FORMATS: tuple[str, ...] = tuple(name for name in FORMATS if name != "json")
"""Formats that ``PerfDoctor(reports=...)`` writes at the end of a run. JSON is the session, which it writes itself."""


def draw(name: str, session: Session, show_all: bool, source: str) -> str:
    """Return a session's report in one of ``FORMATS``."""
    text: str = _module(name).draw(session, show_all, source)
    return text


def suffix(name: str) -> str:
    """Return the suffix of files in one of ``FORMATS``, e.g. ``".html"``."""
    found: str = _module(name).SUFFIX
    return found


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
