"""Observe the files that a run wrote: their names and, where it is deterministic, their content."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .observations import Observed, Walk, digest

OUR_FILES = (
    r"(^|/)perf_(session|report|ranks|logs)[^/]*(/.*)?$",
    r"\.pt\.trace\.json(\.gz)?$",
    r"(^|/)lightning.perf(/.*)?$",
)
_EVENTS = re.compile(r"events\.out\.tfevents\.[^/]*")


def observe_files(folder: Path) -> Observed:
    """Return the files below a folder, without ours, with hashes of their content."""
    found: Observed = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(re.search(pattern, name) for pattern in OUR_FILES):
            continue
        name = _EVENTS.sub("events", name)
        if path.is_file():
            content = _content(path)
            if content != []:  # nothing but our figures
                found.setdefault(name, []).append(content)
        elif not path.is_dir():
            found[name] = "special"
    return found


def _content(path: Path) -> Any:
    reader: Callable[[Path], Any] | None = {".csv": _csv, ".ckpt": _checkpoint, ".pt": _checkpoint}.get(path.suffix)
    if _EVENTS.fullmatch(path.name):
        reader = _events
    try:
        return reader(path) if reader is not None else digest(path.read_bytes())
    except Exception as error:  # noqa: BLE001 - compared
        return f"unreadable: {error}"


def _csv(path: Path) -> Any:
    rows = list(csv.DictReader(path.open()))
    rows = [{key: value for key, value in row.items() if value and not str(key).startswith("perf/")} for row in rows]
    return [row for row in rows if set(row) - {"epoch", "step"}]


def _checkpoint(path: Path) -> Any:
    walk = Walk()
    walk.walk("", torch.load(path, weights_only=False))
    return walk.found


def _events(path: Path) -> Any:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = []
    for event in EventFileLoader(str(path)).Load():
        found += [(v.tag, event.step, v.tensor.SerializeToString()) for v in event.summary.value]
    return [one for one in found if not one[0].startswith(("perf/", "perfdoctor"))]
