"""What a real terminal and a log file show of a training with a progress bar and PerfDoctor."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from pathlib import Path

import pytest

from lightning_perf.reports.brief_lines import MAX_LINES
from tests.forkserver import Forkserver
from tests.terminal import Screen

pytestmark = pytest.mark.skipif(not hasattr(os, "forkpty"), reason="needs pseudo-terminals")

N_EPOCHS = 3
EPOCH_LINES = [
    [f"PerfDoctor  epoch {epoch} · ".ljust(80, "x"), "  PD101 a new finding", "  fix   num_workers=2"]
    for epoch in range(N_EPOCHS)
]

SCRIPT = """
import logging, os, sys, warnings

target = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_APPEND)
for number in (1, 2):
    os.dup2(target, number)
sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)
sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)

from lightning.pytorch import Trainer, callbacks

from lightning_perf import PerfDoctor
from lightning_perf.reports import console
from lightning_perf.reports.brief_lines import BriefReport, Line
from lightning_perf.run_reports import RunReports
from tests.trainer.models import Tiny, loader

LINES = {lines!r}
console.brief_epoch = lambda session, epoch, *_: BriefReport([Line(((line, "bold"),)) for line in LINES[epoch]])
RunReports.can_afford_epoch = lambda *_: True
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
Trainer(
    max_epochs={n_epochs}, accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False,
    callbacks=[PerfDoctor(schedule=None, out_dir="out", ceilings=False), getattr(callbacks, sys.argv[1])()],
).fit(Tiny(), loader(6), loader(2))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short training whose progress bar and reports share the standard output."""
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "LIGHTNING_PERF_CONSOLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(lines=EPOCH_LINES, n_epochs=N_EPOCHS), encoding="utf-8")
    return path


def shown_in_terminal(forkserver: Forkserver, script: Path, bar: str, width: int) -> str:
    """Run the script on a pseudo-terminal and return all that it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    written = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(ours, 65536):
                written.extend(chunk)
        except OSError:  # every program has closed the terminal
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        done = forkserver.run(script, bar, os.ttyname(theirs))
    finally:
        os.close(theirs)
        reader.join(60)
        os.close(ours)
    text = written.decode()
    assert done.returncode == 0, text + done.stderr
    return text


def assert_reports_are_whole(lines: list[str]) -> None:
    """Check that each epoch's lines and the final report stand together, with nothing else on their lines."""
    for expected in EPOCH_LINES:
        at = lines.index(expected[0])
        assert lines[at : at + 3] == expected
    last = max(at for at, line in enumerate(lines) if line.startswith("PerfDoctor  "))
    report = lines[last : last + MAX_LINES]
    assert len([line for line in report if line.startswith("details  lightning-perf report out --full")]) == 1
    assert not any("Epoch " in line or "Validation" in line for line in report)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("bar", ["TQDMProgressBar", "RichProgressBar"])
def test_terminal_shows_whole_lines_when_a_progress_bar_is_alive(
    forkserver: Forkserver, script: Path, bar: str, width: int
) -> None:
    screen = Screen(width)
    screen.feed(shown_in_terminal(forkserver, script, bar, width))
    assert_reports_are_whole(screen.lines)
    assert screen.wrapped == []
    [bar_line] = [line for line in screen.lines if "Epoch " in line]  # neither drawn twice nor torn
    assert f"Epoch {N_EPOCHS - 1}" in bar_line


@pytest.mark.parametrize("bar", ["TQDMProgressBar", "RichProgressBar"])
def test_log_file_has_whole_lines_and_no_redraws_when_a_progress_bar_is_alive(
    forkserver: Forkserver, script: Path, bar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logged(name: str) -> str:
        path = script.with_name(name)
        done = forkserver.run(script, bar, str(path))
        assert done.returncode == 0, done.stderr
        return path.read_bytes().decode()

    text = logged("with.log")
    assert_reports_are_whole(re.split("[\r\n]", text))
    monkeypatch.setenv("LIGHTNING_PERF_CONSOLE", "off")
    without = logged("without.log")
    assert "PerfDoctor" not in without
    for control in ("\r", "\x1b"):  # tqdm's own, as many as without PerfDoctor
        assert text.count(control) == without.count(control)
