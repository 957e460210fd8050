"""The base of every record: immutable, keyword-only, and tolerant of fields that a newer version added."""

from __future__ import annotations

import sys

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Immutable record of measurements or findings.

    Numbers carry their unit at the end of their name (``_s`` seconds, ``_bytes``, ``_fraction`` and ``share`` in
    0…1, ``_us`` microseconds). A missing measurement is ``None``, with its reason in the record's ``missing``
    or in ``Session.missing``; it is never 0.
    """

    def _repr_html_(self) -> str | None:
        """Return the HTML that a notebook shows; None for plain text."""
        # Records may not import reports, so the package provides the function.
        drawn: str | None = sys.modules[__name__.partition(".")[0]].to_html(self)
        return drawn
