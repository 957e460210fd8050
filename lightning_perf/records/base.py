"""The base of every record: immutable, keyword-only, and tolerant of fields that a newer version added."""

from __future__ import annotations

import sys

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One thing that was seen or said.

    Numbers carry their unit at the end of their name (``_s`` seconds, ``_bytes``, ``_fraction`` and ``share`` in
    0…1, ``_us`` microseconds). A missing measurement is ``None``, with its reason in the record's ``missing``
    or in ``Session.missing``; it is never 0.
    """

    def _repr_html_(self) -> str | None:
        """What a notebook shows; None, which means the plain text, for records that have no such form."""
        # Records know no report: the package that they are in says who draws them.
        drawn: str | None = sys.modules[__name__.partition(".")[0]].to_html(self)
        return drawn
