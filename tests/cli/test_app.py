from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from lightning_perf import __version__
from lightning_perf.cli.app import COMMANDS, main
from lightning_perf.errors import TraceError
from tests.cli.command_line import call


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightning_perf", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_help_lists_every_verb_without_importing_any(tmp_path: object) -> None:
    script = textwrap.dedent("""
        import sys
        from lightning_perf.cli.app import main
        sys.argv = ["lightning-perf", "--help"]
        try:
            main()
        except SystemExit as leaving:
            assert not leaving.code, leaving.code
        loaded = [name for name in ("torch", "lightning", "numpy", "lightning_perf.cli.report") if name in sys.modules]
        assert not loaded, loaded
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for name, command in COMMANDS.items():
        assert name in done.stdout
        assert command.summary in done.stdout


def test_module_runs_as_the_command_line_does() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"lightning-perf {__version__}\n")


def test_help_is_shown_when_no_verb_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch) == 2
    assert "report" in capsys.readouterr().out


def test_exit_code_is_two_when_the_verb_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "raport") == 2
    assert "raport" in capsys.readouterr().err


def test_error_is_one_line_and_exit_code_two_when_a_verb_raises_one_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> None:
        raise TraceError("first\nsecond \x1b[31m[bold]")

    monkeypatch.setattr("lightning_perf.cli.app.app", failing)
    assert call(monkeypatch) == 2
    captured = capsys.readouterr()
    assert captured.err == "lightning-perf: first second [bold]\n"
    assert captured.out == ""


def test_error_is_one_line_when_a_folder_is_not_readable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/other/user")

    monkeypatch.setattr("lightning_perf.cli.app.app", failing)
    assert call(monkeypatch) == 2
    error = capsys.readouterr().err
    assert "Permission denied: '/other/user'" in error
    assert error.count("\n") == 1


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("lightning_perf.cli.app.app", failing)
    with pytest.raises(ZeroDivisionError):
        main()


@pytest.mark.parametrize("command", ["report", "explain", "rules"])
def test_verb_shows_its_own_help(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, command, "--help") == 0
    assert f"lightning-perf {command}" in capsys.readouterr().out
