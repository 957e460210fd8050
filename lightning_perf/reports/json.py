"""The session as JSON for other programs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lightning_perf.errors import ConfigError
from lightning_perf.records import Session


def to_json(session: Session, fields: Sequence[str] | None = None) -> str:
    """Return the session, or some of its fields, as indented JSON; numbers that are not finite become null.

    Args:
        session: The session.
        fields: Names of top-level fields, e.g. ``["verdict", "findings"]``; ``schema_version`` is
            always included. None for all.

    Raises:
        ConfigError: There is no such field.
    """
    if fields is None:
        return session.to_json().decode()
    known = session.__struct_fields__
    unknown = [field for field in fields if field not in known]
    if unknown:
        raise ConfigError(f"a session has no {', '.join(map(repr, unknown))}; its fields are {', '.join(known)}")
    picked = {field: getattr(session, field) for field in known if field in fields or field == "schema_version"}
    return msgspec.json.format(msgspec.json.encode(picked), indent=1).decode()
