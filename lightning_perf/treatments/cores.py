"""How many cores a rank may use."""

from __future__ import annotations

import os

from lightning_perf.cgroups import read_usable_cores
from lightning_perf.records import Session


def whole_cores_per_rank(session: Session | None) -> int:
    """Whole cores for one rank, at least 1: the session's machine, or this process where there is no session."""
    if session is not None:
        return max(1, int(session.machine.usable_cores / max(session.machine.local_world_size, 1)))
    return max(1, int(read_usable_cores() / int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)))
