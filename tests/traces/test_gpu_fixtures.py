"""Traces of our own trainings, recorded on a GPU: each names its fault, with and without its session."""

from pathlib import Path

import pytest

from lightning_perf.records import load
from lightning_perf.rules.engine import diagnose, diagnose_trace
from lightning_perf.traces import analyze

FOLDER = Path(__file__).parent / "gpu"
CODES = {
    "launch-bound": {"PD303"},
    "compute-bound": {"PD317", "PD310"},
    "fp32-matmul": {"PD301"},
    "pageable-copy": {"PD201"},
    "synchronizing": {"PD501"},
}


@pytest.mark.parametrize("name", CODES)
def test_fault_is_named_when_the_recording_is_read(name: str) -> None:
    file = FOLDER / f"{name}.json.gz"
    if not file.exists():
        pytest.skip(f"{file.name} was not recorded yet: run python -m tests.gpu.record_traces on a machine with a GPU")
    assert CODES[name] & {finding.code for finding in diagnose_trace(analyze(file)).findings}
    session = diagnose(load(FOLDER / f"{name}.session.json"))
    assert CODES[name] & {finding.code for finding in session.findings}
