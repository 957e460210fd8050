"""Analyze the traces of several ranks."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from lightning_perf.errors import TraceError
from lightning_perf.records import TraceRecord
from lightning_perf.records.remote import AnyPath, RemotePath, any_path, exists, is_dir

from .analyze import analyze_timeline
from .multi_rank import RankLog, compare_ranks
from .read import read
from .timeline import Timeline

_ENDINGS = (".json", ".json.gz")
_NOT_COMPARED: Final = (
    "the traces of {n} ranks cannot be compared: they share too few collectives of the same steps, or these do not "
    "end together"
)


def _trace_files(paths: Iterable[str | os.PathLike[str] | RemotePath]) -> list[AnyPath]:
    """Return the trace files among files and folders (searched recursively), also at URLs, sorted by name.

    Raises:
        TraceError: A path does not exist, or a folder contains no trace.
    """
    found: dict[AnyPath, None] = {}
    for path in map(any_path, paths):
        try:
            is_folder, is_there = is_dir(path), exists(path)
            files: list[Any] = list(path.glob("**/*")) if is_folder else []
        except OSError as error:
            raise TraceError(f"Cannot read {path}: {error}") from error
        if is_folder:
            files = [one for one in files if isinstance(one, RemotePath) or one.is_file()]
            inside = sorted(one for one in files if one.name.endswith(_ENDINGS))
            traces = [file for file in inside if ".pt.trace.json" in file.name] or inside
            if not traces:
                raise TraceError(f"{path} holds no trace: expected files ending in .json or .json.gz.")
            found.update(dict.fromkeys(traces))
        elif is_there:
            found[path] = None
        else:
            raise TraceError(f"{path} does not exist. Expected a trace file, or a folder of traces.")
    return list(found)


def analyze_many(
    paths: Iterable[str | os.PathLike[str]], *, max_bytes: int | None = None
) -> tuple[list[TraceRecord], list[TraceError]]:
    """Analyze every trace among files and folders.

    Returns:
        The records by rank, unknown ranks last, and the errors of files that could not be read. If several traces are
        of one run, ``ranks`` of the first one compares them.

    Raises:
        TraceError: A path does not exist, or a folder contains no trace.
    """
    records: list[TraceRecord] = []
    logs: list[RankLog | None] = []
    errors: list[TraceError] = []
    for file in _trace_files(paths):
        try:
            record, log = analyze_timeline(Timeline(read(file, max_bytes=max_bytes)))
        except TraceError as error:
            errors.append(error)
            continue
        records.append(record)
        logs.append(log)
    by_rank = sorted(_with_ranks(records, logs), key=lambda record: (record.rank is None, record.rank or 0))
    return by_rank, errors


def _with_ranks(records: list[TraceRecord], logs: Sequence[RankLog | None]) -> list[TraceRecord]:
    """Add the comparison of ranks to the first record of each set of traces.

    The first traces of all ranks are a set, then the second ones, because a run may record several windows.
    """
    of_rank: dict[tuple[int | None, int], list[int]] = {}
    for i, log in sorted(enumerate(logs), key=lambda item: item[1].begin_ns if item[1] is not None else 0):
        if log is not None:
            of_rank.setdefault((log.world_size, log.rank), []).append(i)
    sets: dict[tuple[int | None, int], list[int]] = {}
    for (world_size, _), places in sorted(of_rank.items(), key=lambda item: item[0][1]):
        for nth, i in enumerate(places):
            sets.setdefault((world_size, nth), []).append(i)
    for places in sets.values():
        if len(places) > 1:
            ranks = compare_ranks([log for i in places if (log := logs[i]) is not None])
            reason = {} if ranks is not None else {"ranks": _NOT_COMPARED.format(n=len(places))}
            first = records[places[0]]
            records[places[0]] = msgspec.structs.replace(first, ranks=ranks, missing={**first.missing, **reason})
            if ranks is not None:
                for i, one in zip(places, ranks.ranks, strict=True):
                    records[i] = _with_waiting(records[i], one.waiting_s)
    return records


def _with_waiting(record: TraceRecord, step_waiting_s: float) -> TraceRecord:
    if record.communication is None:
        return record
    waiting_s = min(step_waiting_s * max(1, len(record.steps)), record.communication.exposed_s)
    communication = msgspec.structs.replace(record.communication, waiting_s=waiting_s)
    return msgspec.structs.replace(record, communication=communication)
