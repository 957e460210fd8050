"""The fork server of the tests: a script runs in it as it would by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forkserver import Forkserver


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('why')", 1, "why"),
        ("raise ValueError('planted')", 1, "ValueError: planted"),
        ("import os; os.kill(os.getpid(), 9)", 9, ""),
        ("import atexit, sys; atexit.register(print, 'at exit', file=sys.stderr)", 0, "at exit"),
    ],
)
def test_status_and_errors_are_those_of_the_script(
    forkserver: Forkserver, script: Path, code: str, status: int, stderr: str
) -> None:
    script.write_text(code)
    done = forkserver.run(script)
    assert done.returncode == status
    assert stderr in done.stderr


def test_script_is_the_main_program_with_its_arguments_and_folder(forkserver: Forkserver, script: Path) -> None:
    script.write_text("import os, sys; print(__name__, sys.argv[1:], os.getcwd(), sys.path[0])")
    assert forkserver.run(script, "a", "b").stdout == f"__main__ ['a', 'b'] {script.parent} {script.parent}\n"


def test_each_rank_communicates_with_the_others(forkserver: Forkserver, script: Path) -> None:
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "sum = torch.tensor(dist.get_rank() + 1)\n"
        "dist.all_reduce(sum)\n"
        "print(f'{dist.get_rank()} {sum.item()}\\n', end='')\n"
        "dist.destroy_process_group()\n"
    )
    done = forkserver.run(script, n_ranks=2)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 3", "1 3"]


def test_call_fails_when_a_script_takes_too_long(forkserver: Forkserver, script: Path) -> None:
    script.write_text("import time; time.sleep(600)")
    with pytest.raises(AssertionError, match="still running after 1"):
        forkserver.run(script, limit_s=1.0)


def test_call_fails_when_a_script_leaves_a_process_behind(forkserver: Forkserver, script: Path) -> None:
    script.write_text("import subprocess; subprocess.Popen(['sleep', '600'])")
    with pytest.raises(AssertionError, match="processes left behind"):
        forkserver.run(script, grace_s=0.1)
