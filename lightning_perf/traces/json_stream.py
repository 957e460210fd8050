"""Read a trace file, plain or gzip, as batches of events, in constant memory."""

import functools
import gzip
import operator
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from lightning_perf.errors import TraceError
from lightning_perf.records.files import open_regular

CHUNK_BYTES = 512 << 10
"""Text that is decoded at once: larger pieces do not fit the CPU's cache, smaller ones need more calls."""

MAX_BYTES = 16 << 30
"""Largest text of a compressed trace, unless the caller allows more."""

FREE_BYTES = 256 << 20
"""Text that a compressed trace may have whatever its ratio."""

MAX_RATIO = 200
"""Largest text ÷ compressed size beyond ``FREE_BYTES``. Real traces reach 20 to 60; deflate allows 1,030."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is no JSON, no UTF-8, or nested too deeply."""

_GZIP = b"\x1f\x8b"
_NOT_A_TRACE = {b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "zstandard data", b"\x80\x04": "a pickle"}
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*(,)\s*(?=\{)")
_BOUNDARY_SEARCH_BYTES = (4 << 10, 64 << 10)
_BOUNDARY_TRIES = 8
_MAX_REPAIR_BYTES = 128 << 20  # each repair copies the text
_NOT_JSON_NUMBER = re.compile(rb":\s*-?(?:nan|NaN|inf|Inf|Infinity)(?=\s*[,}\]])")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrtu])')
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class Event(msgspec.Struct, gc=False):
    """One unchecked event; ``args`` stay JSON text."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw()


# Entries that are no objects are dropped later, so that the file can still be read.
_Entries = list[Event | int | float | str | bool | list[Any] | None]


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One complete event with checked types."""

    name: str
    pid: int | str
    tid: int | str
    ts: float
    dur: float
    cat: str | None = None
    args: msgspec.Raw = msgspec.Raw()


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """One unchecked event without a duration, such as an allocation of memory."""

    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    args: msgspec.Raw = msgspec.Raw()


# Flow arrows and counters: half of a trace, and cheap to skip by their tag.
_SKIPPED = tuple(msgspec.defstruct(f"Skipped_{ph}", [], gc=False, tag_field="ph", tag=ph) for ph in "MfstCBEbenNODvRPS")


class Batch(NamedTuple):
    """Events that were decoded together: their number, those with a category and a duration, and those of memory."""

    n_events: int
    complete: Sequence[Event | Complete]
    memory: Sequence[Event | Instant] = ()


class Header(msgspec.Struct):
    """The trace's fields besides its events."""

    traceEvents: _Entries | None = None
    distributedInfo: Any = None
    deviceProperties: Any = None
    baseTimeNanoseconds: Any = None


_Usual: Any = functools.reduce(operator.or_, (Complete, Instant, *_SKIPPED))
_decode_usual = msgspec.json.Decoder(list[_Usual]).decode
_decode_events = msgspec.json.Decoder(_Entries).decode
_decode_header = msgspec.json.Decoder(Header).decode


def text_chunks(path: Path, name: str, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the text of a file in pieces, decompressed if its first bytes are those of gzip.

    ``name`` names the file in errors; ``max_bytes`` replaces ``MAX_BYTES`` and ``MAX_RATIO``.

    Raises:
        TraceError: The file cannot be opened, is an incomplete gzip file, or has more text than allowed.
    """
    try:
        with open_regular(path) as file:
            magic = file.read(4)
            file.seek(0)
            for start, what in _NOT_A_TRACE.items():
                if magic.startswith(start):
                    raise TraceError(f"{name} is {what}; expected a profiler trace as JSON or gzip.")
            if magic.startswith(_GZIP):
                yield from _decompressed(file, name, max_bytes)
            else:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"Cannot read {name}: {reason}. Expected a profiler trace file.") from error


def _decompressed(file: BinaryIO, name: str, max_bytes: int | None) -> Iterator[bytes]:
    n_text = 0
    packed = gzip.GzipFile(fileobj=file)
    try:
        while text := packed.read1(CHUNK_BYTES):  # ``read`` would lose the text before a cut
            n_text += len(text)
            _check_size(name, n_text, file.tell(), max_bytes)
            yield text
    except EOFError as error:
        raise TraceError(
            f"{name} is a gzip file cut in the middle, after {n_text:,} bytes of text; copy it again."
        ) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{name} starts like gzip but cannot be decompressed ({error}). Expected a whole gzip file; copy it again."
        ) from error


def _check_size(name: str, n_text: int, n_read: int, max_bytes: int | None) -> None:
    if max_bytes is not None:
        if n_text > max_bytes:
            raise TraceError(f"{name} has more text than the {max_bytes:,} bytes allowed; allow more to read it.")
    elif n_text > MAX_BYTES or (n_text > FREE_BYTES and n_text > MAX_RATIO * n_read):
        raise TraceError(
            f"{name} decompresses to more than {n_text:,} bytes from {n_read:,}: it is not a trace, or too large. "
            f"If you trust the file, allow more (max_bytes=, or --max-bytes on the command line)."
        )


class EventStream:
    """Decodes a trace batch by batch.

    The text is cut where one event ends and the next begins. Decoding proves that a cut is right: JSON is read from
    left to right, so a piece that decodes as a list ends where an event of the document ends. ``header`` is complete
    after the iteration.
    """

    def __init__(self, chunks: Iterator[bytes], name: str) -> None:
        self.header = Header()
        self._chunks = chunks
        self._name = name
        self._done_bytes = 0

    def __iter__(self) -> Iterator[Batch]:
        rest, is_list = self._skip_to_events()
        pieces = [rest]
        n_bytes = len(rest)
        n_needed = CHUNK_BYTES
        for chunk in self._chunks:
            pieces.append(chunk)
            n_bytes += len(chunk)
            if n_bytes < n_needed:
                continue
            # A list that can be closed in place at the cut: copying the text would cost a tenth of decoding it.
            text = bytearray().join((b"[", *pieces))
            batch, n_used = self._decoded_front(text)
            # Without a complete event (one huge event, the end, or an error), try again with twice as much text.
            n_needed = CHUNK_BYTES if n_used else 2 * n_bytes
            rest = bytes(memoryview(text)[1 + n_used :])
            self._done_bytes += n_used
            pieces, n_bytes = [rest], len(rest)
            del text
            if batch is not None:
                yield batch
        yield as_batch(self._decoded_tail(b"".join(pieces), is_list))

    def _skip_to_events(self) -> tuple[bytes, bool]:
        """Read up to the first event; return the rest, and whether the trace is a list."""
        text = b""
        searched = 0
        for chunk in self._chunks:
            text += chunk
            first = text.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
            if first == b"[":
                start = text.index(b"[") + 1
                self._done_bytes = start
                return text[start:], True
            if first and first != b"{":
                raise TraceError(f"{self._name} is not JSON: it begins with {text[:20]!r}. Expected a profiler trace.")
            for match in _EVENTS_KEY.finditer(text, max(0, searched - 64)):
                try:
                    self.header = _decode_header(text[: match.end()].lstrip(b"\xef\xbb\xbf") + b"]}")
                except UNREADABLE:
                    continue  # inside a string or a nested object
                self._done_bytes = match.end()
                return text[match.end() :], False
            searched = len(text)
        if not text.strip():
            raise TraceError(f"{self._name} is empty. Expected a profiler trace.")
        raise TraceError(f"{self._name} {_why_no_trace(text)}")

    def _decoded_front(self, text: bytearray) -> tuple[Batch | None, int]:
        """Return the complete events of the text after its bracket, and the length of their text (0 without a cut)."""
        for cut in _cuts(text):
            comma = cut.start(1)
            text[comma] = ord("]")
            try:
                return self._events(memoryview(text)[: comma + 1]), cut.end() - 1
            except UNREADABLE:
                text[comma] = ord(",")
        return None, 0

    def _events(self, piece: memoryview) -> Batch:
        try:
            events: list[Any] = _decode_usual(piece)
            complete = [event for event in events if type(event) is Complete and event.cat is not None]
            return Batch(len(events), complete, [event for event in events if type(event) is Instant])
        except UNREADABLE:
            pass  # some entry is unusual, or the text is no JSON
        try:
            return as_batch(_decode_events(piece))
        except UNREADABLE:
            return as_batch(_decode_events(_repaired(bytes(piece))))

    def _decoded_tail(self, text: bytes, is_list: bool) -> list[Any]:
        """Decode the last events, and the fields after them."""
        if is_list:
            events: list[Any] = self._strictly(_decode_events, b"[" + text)
            return events
        tail: Header = self._strictly(_decode_header, b'{"traceEvents":[' + text)
        for field in Header.__struct_fields__[1:]:
            if getattr(self.header, field) is None:
                setattr(self.header, field, getattr(tail, field))
        return tail.traceEvents or []

    def _strictly(self, decode: Callable[[bytes], Any], text: bytes) -> Any:
        try:
            try:
                return decode(text)
            except UNREADABLE:
                return decode(_repaired(text))
        except RecursionError as error:
            raise TraceError(f"{self._name} nests its values too deeply to be a profiler trace.") from error
        except UNREADABLE as error:
            if "truncated" in str(error):
                raise TraceError(
                    f"{self._name} is cut in the middle, {self._done_bytes + len(text):,} bytes in: the process that "
                    "wrote it may have been killed. Expected the whole trace; copy or record it again."
                ) from error
            raise TraceError(
                f"{self._name} is not valid JSON, in the part that begins at byte {self._done_bytes:,}: {error}. "
                "Expected a profiler trace; copy or record it again."
            ) from error


def _cuts(text: bytearray) -> Iterator[re.Match[bytes]]:
    """Yield places near the end where one event may end and the next begin, the last first."""
    n_tried = 0
    end = len(text)
    for n_bytes in _BOUNDARY_SEARCH_BYTES:
        cuts = [cut for cut in _BOUNDARY.finditer(text, max(1, len(text) - n_bytes)) if cut.end() < end]
        for cut in cuts[: -(_BOUNDARY_TRIES - n_tried + 1) : -1]:
            n_tried += 1
            end = cut.end()
            yield cut


def as_batch(entries: Sequence[Any]) -> Batch:
    """Return a batch of those entries that are events."""
    events = [entry for entry in entries if type(entry) is Event]
    complete = [event for event in events if event.ph == "X" and event.cat is not None]
    return Batch(len(events), complete, [event for event in events if event.ph == "i"])


def _repaired(text: bytes) -> bytes:
    """Return the text without invalid JSON that profilers wrote: NaN, lone backslashes, control characters."""
    if len(text) > _MAX_REPAIR_BYTES:
        return text
    text = _NOT_JSON_NUMBER.sub(b":null", text)
    text = _BAD_ESCAPE.sub(rb"\\\\", text)
    text = _CONTROL.sub(b" ", text)
    return text.decode("utf-8", errors="replace").encode("utf-8")


def _why_no_trace(text: bytes) -> str:
    """Return why a document is not a trace, as the rest of a sentence."""
    try:
        document = msgspec.json.decode(text)
    except UNREADABLE as error:
        if "truncated" in str(error):
            return f"is cut in the middle, before the first event ({len(text):,} bytes); copy or record it again."
        return f"is not valid JSON: {error}. Expected a profiler trace."
    keys = ", ".join(sorted(map(str, document))[:8]) if isinstance(document, dict) else type(document).__name__
    is_session = isinstance(document, dict) and "schema_version" in document
    hint = " It is a session: lightning-perf report reads it." if is_session else ""
    return f"is JSON but not a profiler trace: it has {keys or 'no fields'}, and no list named traceEvents.{hint}"
