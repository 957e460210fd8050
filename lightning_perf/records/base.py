"""The base of every record: immutable, keyword-only, and tolerant of fields that a newer version added."""

import sys
from typing import Any

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Immutable record of measurements or findings.

    Numbers carry their unit at the end of their name (``_s`` seconds, ``_bytes``, ``_fraction`` and ``share`` in
    0…1, ``_us`` microseconds). A missing measurement is ``None``, with its reason in the record's ``missing``
    or in ``Session.missing``; it is never 0.
    """

    def __str__(self) -> str:
        """Return a short report, or the record's fields if reports do not know this kind of record."""
        text: str | None = _package().to_text(self)
        return repr(self) if text is None else text

    def _repr_html_(self) -> str | None:
        """Return HTML for notebooks; None, for which they show the text, if reports do not know this kind of record."""
        drawn: str | None = _package().to_html(self)
        return drawn


def _package() -> Any:
    """Return ``lightning_perf``, which knows the reports; records must not import them."""
    return sys.modules[__name__.partition(".")[0]]
