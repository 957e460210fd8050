"""Traces of several ranks together."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from lightning_perf.errors import TraceError
from lightning_perf.records import TraceRecord

from .analyze import analyze

_ENDINGS = (".json", ".json.gz")


def trace_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The trace files among files and folders, folders searched to the bottom; each once, in order of their names.

    Raises:
        TraceError: A path does not exist, or a folder holds no trace.
    """
    found: dict[Path, None] = {}
    for each in paths:
        path = Path(each)
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.name.endswith(_ENDINGS) and file.is_file())
            traces = [file for file in inside if ".pt.trace.json" in file.name] or inside
            if not traces:
                raise TraceError(f"{path} holds no trace: expected files ending in .json or .json.gz.")
            found.update(dict.fromkeys(traces))
        elif path.exists():
            found[path] = None
        else:
            raise TraceError(f"{path} does not exist. Expected a trace file, or a folder of traces.")
    return list(found)


def in_order(records: Iterable[TraceRecord]) -> list[TraceRecord]:
    """Records by rank; those that do not tell their rank come last, in the order given."""
    return sorted(records, key=lambda record: (record.rank is None, record.rank or 0))


def analyze_many(
    paths: Iterable[str | os.PathLike[str]], *, max_bytes: int | None = None
) -> tuple[list[TraceRecord], list[TraceError]]:
    """Analyses every trace among files and folders.

    Args:
        paths: Files and folders.
        max_bytes: As for ``analyze``.

    Returns:
        The records, by rank, and the errors of files that could not be read.

    Raises:
        TraceError: A path does not exist, or a folder holds no trace.
    """
    records: list[TraceRecord] = []
    errors: list[TraceError] = []
    for file in trace_files(paths):
        try:
            records.append(analyze(file, max_bytes=max_bytes))
        except TraceError as error:
            errors.append(error)
    return in_order(records), errors
