"""A trace from a stranger is refused in one line, or shown in every form without harm."""

import functools
import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.errors import TraceError
from lightning_perf.reports.console import to_text
from lightning_perf.reports.figures import figure_json
from lightning_perf.reports.sections.trace import trace_documents
from lightning_perf.tensorboard_plugin.timeline import draw, lanes_of
from lightning_perf.traces import analyze, analyze_many, read
from tests.fuzzing import FUZZ, IS_TORTURE
from tests.hostile import assert_harmless, mutate, mutated, plain_figures, refusal_of, trace_forms

from .events import SMALL, document, event
from .rank_traces import rank_events
from .shared import FOLDER

FIXTURES = Path(__file__).parent / "fixtures"
N_CHUNKS = 10
N_TRACES = 500 * FUZZ if IS_TORTURE else 100
"""Of all chunks together: 5,000 in ``make torture``."""

_MOST_BYTES = 400_000
"""Larger traces take long to read, and are of the same kinds."""

__all__ = ["plain_figures"]


@functools.cache
def excerpts() -> tuple[bytes, ...]:
    """Return synthetic GPU traces, and a few events of each kind from real ones."""
    files = [*FIXTURES.glob("*.json.gz"), *FOLDER.glob("*.json.gz")]
    real = (_excerpt(file) for file in sorted(files) if file.stat().st_size < _MOST_BYTES)
    return (*(_made_up(rank) for rank in range(2)), *real)


def _made_up(rank: int) -> bytes:
    copies = [
        event("cuda_runtime", "cudaMemcpyAsync", 1860, 100, correlation=903),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1880, 80, 7, correlation=903, stream=7, bytes=4096),
        event("cuda_runtime", "cudaStreamSynchronize", 1980, 60, correlation=904),
    ]
    devices = [{"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 2**35, "computeMajor": 8, "computeMinor": 0}]
    job = {"rank": rank, "world_size": 2, "backend": "nccl"}
    events = [*SMALL, *copies, *rank_events(rank, [[400.0, 900.0], [3_000.0, 2_000.0]])]
    return document(events, distributedInfo=job, deviceProperties=devices)


def _excerpt(file: Path) -> bytes:
    read_in = msgspec.json.decode(gzip.decompress(file.read_bytes()))
    whole = {"traceEvents": read_in} if isinstance(read_in, list) else read_in
    events: list[dict[str, Any]] = whole["traceEvents"]
    kinds = defaultdict(list)
    for one in events:
        kinds[one.get("cat"), one.get("ph")].append(one)
    kept = [one for one in events if str(one.get("name")).startswith("ProfilerStep")][:4]
    for same in kinds.values():
        kept += same[len(same) // 2 :][:25]
    return msgspec.json.encode({**whole, "traceEvents": kept})


@pytest.mark.usefixtures("plain_figures")
@pytest.mark.parametrize("chunk", range(N_CHUNKS))
def test_trace_is_refused_or_shown_without_harm_when_its_content_is_hostile(chunk: int, tmp_path: Path) -> None:
    for i in range(chunk, N_TRACES, N_CHUNKS):
        rng = random.Random(i)
        content = mutated(excerpts(), rng)
        for _ in range(rng.choice((0, 3, 10))):
            mutate(content, rng)
        file = tmp_path / f"{i}.pt.trace.json"
        file.write_bytes(msgspec.json.encode(content))
        try:
            if refusal_of(lambda: analyze(file), TraceError) is None:  # noqa: B023
                _show(file, with_another_rank=i % 7 == 0)
        except Exception as error:
            raise AssertionError(f"trace {i} fails") from error
        file.unlink()


def _show(file: Path, with_another_rank: bool) -> None:
    for form, text in trace_forms(analyze(file)):
        assert_harmless(form, text)
    drawn = draw(lanes_of(read(file)))
    if drawn is not None:
        assert_harmless("figure", json.dumps(figure_json(drawn)["data"], allow_nan=False))
    if with_another_rank:
        other = file.with_name("other.pt.trace.json")
        other.write_bytes(_made_up(1))
        records, _ = analyze_many([file, other])
        assert_harmless("console", to_text(trace_documents(records), width=100))
