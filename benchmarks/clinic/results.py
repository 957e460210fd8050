"""Saved results of the clinic: one section per cap of the machine, in one JSON file.

A run replaces a section only if it covers it: a partial run never replaces a whole one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
from recorded_traces import Recorded
from score import Outcome
from sessions import HandMade

REFERENCE = "none"
"""The machine as it is, without a cap."""


class Section(msgspec.Struct, frozen=True):
    """The results of one run under one cap.

    Attributes:
        cap: Name of the cap.
        command: Arguments of the command.
        minutes: Its duration.
        machine: CPU, its features and its number of usable cores.
        versions: Versions of Python, torch, Lightning and lightning-perf.
        is_whole: Whether every case was diagnosed, with speedups measured.
        outcomes: One per diagnosed run.
        load: Load average of one minute before the first cap; None where it is not known.
        left_out: Names of cases that cannot be judged on this machine.
        recorded: Diagnoses of recorded traces; empty under a cap.
        made: Diagnoses of hand-made sessions; likewise.
    """

    cap: str
    command: str
    minutes: float
    machine: str
    versions: str
    is_whole: bool
    outcomes: tuple[Outcome, ...]
    load: float | None = None
    left_out: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] = ()
    made: tuple[HandMade, ...] = ()


Sections = dict[str, Section]

_decoder = msgspec.json.Decoder(Sections)


def decoded(content: bytes) -> Section:
    """Return the section that a child process wrote.

    Raises:
        msgspec.MsgspecError: It is none.
    """
    return msgspec.json.decode(content, type=Section)


def encoded(value: Section | Sections) -> bytes:
    """Return the record as JSON, with a line for each outcome."""
    return msgspec.json.encode(value).replace(b'{"case":', b'\n{"case":') + b"\n"


def read(file: Path) -> Sections:
    """Return all saved sections; none where nothing was saved.

    Raises:
        msgspec.MsgspecError: The file holds something else.
    """
    return _decoder.decode(file.read_bytes()) if file.exists() else {}


def why_not_saved(saved: Sections, new: Section, names: set[str]) -> str:
    """Return why a section may not be saved; empty where it may.

    Args:
        saved: Sections saved before.
        new: The new section.
        names: Names of all cases that exist today; a saved result of any other case need not be covered.
    """
    old = saved.get(new.cap)
    if old is None:
        if new.cap == REFERENCE and not new.is_whole:
            return f"the first section saved for {new.cap!r} must be of all cases with speedups; run without a subset"
        return ""
    if new.is_whole:
        return ""
    for what, of in (("diagnosed", _diagnosed), ("timed", _timed)):
        before, after = of(old), of(new)
        lost = sorted(name for name in before if name in names and after[name] < before[name])
        if lost:
            some = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
            return f"the saved section for {new.cap!r} has cases {what} more often than this run: {some}"
    return ""


def _diagnosed(section: Section) -> Counter[str]:
    return Counter(one.case for one in section.outcomes)


def _timed(section: Section) -> Counter[str]:
    return Counter({one.case: 1 for one in section.outcomes if one.measured is not None})
