"""Exchange the ranks' states by small files in the run's folder, since a collective would hang as well."""

import contextlib
import os
import time
from pathlib import Path

import msgspec

from lightning_perf.records import RankState
from lightning_perf.records.files import read_regular

_TRIES, _RETRY_S = 5, 0.02


class RankFiles:
    """The file of this rank, and those of the others."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder / "hang_watch"  # a separate folder, because the last rank removes it
        self._paths = [self._folder / f"rank{each}.json" for each in range(world_size)]
        self._rank, self._own = rank, self._paths[rank]

    def write(self, n_steps: int, phase: str, busy: str = "", where: str = "") -> None:
        """Overwrite this rank's file. This is not atomic: a rename each time would load a shared disk."""
        state = RankState(rank=self._rank, n_steps=n_steps, phase=phase, busy=busy, where=where)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._own.write_bytes(msgspec.json.encode(state))

    def read(self) -> tuple[RankState, ...]:
        """Return the states of all ranks that have written one."""
        return tuple(state for state in map(self._state, self._paths) if state is not None)

    def _state(self, path: Path) -> RankState | None:
        for _ in range(_TRIES):
            try:
                state = msgspec.json.decode(read_regular(path), type=RankState)
                return msgspec.structs.replace(state, age_s=max(0.0, time.time() - os.stat(path).st_mtime))
            except OSError:
                return None
            except msgspec.DecodeError:  # read while it was written
                time.sleep(_RETRY_S)
        return None

    def remove(self) -> None:
        """Remove this rank's file, and the folder if nothing is left in it."""
        with contextlib.suppress(OSError):
            os.unlink(self._own)
            os.rmdir(self._folder)
