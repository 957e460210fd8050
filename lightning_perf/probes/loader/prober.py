"""Measure a loader in a child process, on copies, within a time limit."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from torch.utils.data import DataLoader

from lightning_perf.cgroups import read_usable_cores
from lightning_perf.loader_kinds import inner_loader
from lightning_perf.records import LoaderProbe

from .child import Child, Ended
from .copying import why_no_batches, why_not_copied
from .stages import Extent, Plan, Report, probe

_decode = msgspec.json.Decoder(Report).decode  # built once: building it in two threads at once crashes

LIMIT_S = 20.0
"""Default number of seconds after which the child is killed; it plans to finish a little earlier."""
MIN_LIMIT_S = 2.0
"""Least limit: a shorter probe would end before its workers start."""
BATCHES_LIMIT_S = 3.0
"""Limit for timing a few batches."""


class LoaderProber:
    """Measurement of one loader at a time, while this process does other work.

    A forked child and its own workers do everything, on copies of dataset, sampler, collate and generators, with
    separate open files. Random states, samplers, files and iterators of this process do not change. If the data raises,
    hangs, ends its process or takes too much memory, the probe ends with its results so far. Call ``start`` once,
    ``poll`` now and then, and ``close`` at the end.

    The child is killed after ``limit_s``. ``local_world_size`` ranks share the cores. ``load`` are the seconds per step
    that the training computes and its threads: the curve is also measured beside such a load; None if unknown.
    """

    def __init__(
        self,
        limit_s: float = LIMIT_S,
        local_world_size: int = 1,
        load: tuple[float, int] | None = None,
        extent: Extent = "full",
    ) -> None:
        self._limit_s = max(MIN_LIMIT_S, limit_s) if extent == "full" else limit_s
        self._local_world_size = local_world_size
        self._load = load
        self._extent = extent
        self._child = Child(self._limit_s)
        self._scratch: Path | None = None
        self._initial = LoaderProbe(status="failed", reason="not started")
        self._result: LoaderProbe | None = self._initial
        self._started_s = 0.0

    def start(self, loader: Any, index: int = 0) -> LoaderProbe | None:
        """Start measuring; return None if the child runs, else the record that says why this loader is not probed."""
        if self._child.is_alive:
            raise RuntimeError("start() was called while a probe runs; call close() before starting another")
        outer, loader = loader, inner_loader(loader)
        is_plain = isinstance(loader, DataLoader)
        cores = read_usable_cores() / max(1, self._local_world_size)
        self._initial = LoaderProbe(
            status="failed",
            index=index,
            usable_cores=cores,
            num_workers=loader.num_workers if is_plain else None,
            batch_size=loader.batch_size if is_plain else None,
            missing={"pin": "pinning needs the device, which a forked process cannot use"},
        )
        self._result = None
        reason = why_not_copied(outer) or (why_no_batches(loader) if self._extent == "batches" else None)
        if reason is None:
            try:
                # Short: multiprocessing puts sockets into it, whose paths may have about a hundred characters.
                self._scratch = Path(tempfile.mkdtemp(prefix=f"lperf{os.getpid()}-"))
                plan = Plan(self._limit_s, cores, self._scratch, self._load, self._extent)
                self._child.start(partial(probe, loader, plan, self._initial))
            except OSError as error:
                self._remove_scratch()
                reason = f"no child process could be started: {error}"
        if reason is not None:
            self._result = msgspec.structs.replace(self._initial, status="refused", reason=reason)
        self._started_s = time.monotonic()
        return self._result

    def poll(self) -> LoaderProbe | None:
        """Return the record, or None while the child runs. Never blocks."""
        ended = self._child.poll()
        if self._result is None and ended is not None:
            self._result = self._record(ended)
            self._remove_scratch()
        return self._result

    def wait(self, timeout_s: float | None = None, is_over: Callable[[], bool] = lambda: False) -> LoaderProbe | None:
        """Wait for the record and return it; None if the time is up first.

        Args:
            timeout_s: Seconds; None for as long as the child may live.
            is_over: Returns True once the process has to end: the probe then ends too.
        """
        until_s = time.monotonic() + (self._limit_s + 5.0 if timeout_s is None else timeout_s)
        while (result := self.poll()) is None and time.monotonic() < until_s:
            if is_over():
                self.close()
                return self.poll()
            time.sleep(0.02)
        return result

    def close(self) -> None:
        """End a probe that still runs; leave no process, descriptor, segment or file. May be called twice."""
        self._child.close()
        self.poll()
        self._remove_scratch()

    def _record(self, ended: Ended) -> LoaderProbe:
        try:
            note = _decode(ended.results)
        except msgspec.MsgspecError:
            note = Report("", [], self._initial)
            reason = ended.failure or "its process ended before it reported anything"
        else:
            reason = f"{ended.failure} while {note.stage}" if ended.failure else note.failure
            # Without a failure, other code has reaped the process, or the data called os._exit(0).
            if not reason and note.stage != "done":
                reason = f"its process ended while {note.stage}"
        # Killed workers leave shared memory, which torch names by the id of the process that made it.
        _remove_shared(*(f"torch_{pid}_*" for pid in note.pids))
        if note.refusal:
            return msgspec.structs.replace(note.probe, status="refused", reason=note.refusal)
        if not reason:
            return msgspec.structs.replace(note.probe, status="measured", reason="")
        status = "failed" if note.probe.getitem is None else "partial"
        wall_s = time.monotonic() - self._started_s
        return msgspec.structs.replace(note.probe, status=status, reason=reason, wall_s=wall_s)

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            # Spawned workers use named semaphores, which only the process that made them would remove.
            _remove_shared(f"sem.{self._scratch.name}-*")
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


def _remove_shared(*patterns: str) -> None:
    for pattern in patterns:
        for path in Path("/dev/shm").glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()
