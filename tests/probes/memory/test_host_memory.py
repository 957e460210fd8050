"""Resident memory of a process, also once the process has ended."""

from __future__ import annotations

from pathlib import Path

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
