"""Read a trace file."""

import os
from typing import Any

from lightning_perf.errors import TraceError
from lightning_perf.records.files import as_text
from lightning_perf.records.remote import RemotePath, any_path, local_file

from .builder import ColumnBuilder
from .columns import Origin, Trace
from .json_stream import EventStream, Header, text_chunks


def read(path: str | os.PathLike[str] | RemotePath, *, max_bytes: int | None = None) -> Trace:
    """Read a trace written by ``torch.profiler``, as JSON or gzip.

    Args:
        path: The file, or its URL.
        max_bytes: Largest text that a compressed file may contain, in bytes; None for the default limits against gzip
            bombs.

    Raises:
        TraceError: It cannot be read, is incomplete, or is not a trace; the message says which.
    """
    place = any_path(path)
    try:
        with local_file(place) as file:
            stream = EventStream(text_chunks(file, str(place), max_bytes), str(place))
            builder = ColumnBuilder()
            for batch in stream:
                builder.add(batch)
            return builder.build(as_text(file.name), _origin(stream.header), str(place))
    except OSError as error:
        raise TraceError(f"Cannot read {place}: {error.strerror or error}. Expected a profiler trace file.") from error


def _origin(header: Header) -> Origin:
    job = header.distributedInfo if isinstance(header.distributedInfo, dict) else {}
    listed = header.deviceProperties if isinstance(header.deviceProperties, list) else []
    return Origin(
        rank=_count(job.get("rank")),
        world_size=_count(job.get("world_size")),
        devices=tuple(each for each in listed if isinstance(each, dict)),
        base_ns=base if (base := _count(header.baseTimeNanoseconds)) is not None and base < 2**62 else 0,
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
