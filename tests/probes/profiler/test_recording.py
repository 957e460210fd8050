"""Files of a profiler window are closed whenever an interrupt comes."""

from __future__ import annotations

import gzip
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lightning_perf.probes.profiler import recording as profiler_recording


class Preempted(Exception):
    """What a signal handler raises."""


def _raise_as_a_file_was_opened(frame: FrameType, event: str, arg: Any) -> None:
    if event == "return" and frame.f_code.co_name in {"open", "__enter__"} and arg is not None:
        sys.setprofile(None)
        raise Preempted


def _interrupted(read: Callable[[Path], None], source: Path) -> None:
    sys.setprofile(_raise_as_a_file_was_opened)
    try:
        read(source)
    finally:
        sys.setprofile(None)


def _pack(source: Path) -> None:
    profiler_recording._pack(source, source.with_name("trace.json.gz"))


def _copy(source: Path) -> None:
    profiler_recording._copy(source, source.with_name("stacks.txt"))


@pytest.mark.parametrize("read", [profiler_recording._require_end, _pack, _copy])
def test_trace_file_is_closed_when_an_interrupt_comes_as_it_was_opened(
    tmp_path: Path, read: Callable[[Path], None]
) -> None:
    source = tmp_path / "trace.json"
    source.write_text("{}")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(Preempted):
            _interrupted(read, source)
    assert [str(one.message) for one in seen] == []


def test_packed_trace_is_the_trace_when_it_was_packed(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text("{}")
    _pack(source)
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == b"{}"
