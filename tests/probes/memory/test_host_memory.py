"""Resident memory of a process, also once the process has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf.probes.memory.host_memory import ResidentMemory

NO_PROCESS = 2**30


def test_nothing_is_read_when_the_process_ended_before_its_file_was_closed(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / str(NO_PROCESS)
    folder.mkdir(parents=True)
    (folder / "statm").write_text("10 5 1")
    memory = ResidentMemory(NO_PROCESS, tmp_path)
    assert memory.read() is not None
    memory.close()
    assert memory.read() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the status file of Linux")
def test_the_peak_of_a_program_is_without_the_memory_of_the_program_that_started_it() -> None:
    measure = (
        "import resource\n"
        "from lightning_perf.probes.memory.host_memory import peak_rss_bytes\n"
        "print(peak_rss_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    start = (
        f"import subprocess, sys\nheld = b'1' * 2**30\nsubprocess.run([sys.executable, '-c', {measure!r}], check=True)"
    )
    output = subprocess.run([sys.executable, "-c", start], check=True, capture_output=True, text=True).stdout
    peak, with_parent = map(int, output.split())
    assert with_parent > 2**30
    assert peak < 2**30
