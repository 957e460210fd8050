"""Exchange what each rank does by small files in the run's folder: a hanging collective needs no other collective."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from lightning_perf.records import RankState
from lightning_perf.records.files import read_regular


class RankFiles:
    """The file of this rank, and those of the others.

    Args:
        folder: The run's folder, on a local or shared disk.
        rank: This rank.
        world_size: Number of ranks.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder / "hang_watch"  # of its own, since the last rank removes it
        self._rank, self._world_size = rank, world_size

    def write(self, state: RankState) -> None:
        """Replace this rank's file; not atomic, since a rename each time would load a shared disk."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path(self._rank).write_bytes(msgspec.json.encode(state))

    def read(self) -> tuple[RankState, ...]:
        """Return the states of all ranks that have written one."""
        found = []
        for rank in range(self._world_size):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                path = self._path(rank)
                state = msgspec.json.decode(read_regular(path), type=RankState)
                found.append(msgspec.structs.replace(state, age_s=max(0.0, time.time() - os.stat(path).st_mtime)))
        return tuple(found)

    def remove(self) -> None:
        """Remove this rank's file, and the folder if nothing is left in it."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(self._rank))
            os.rmdir(self._folder)

    def _path(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.json"
