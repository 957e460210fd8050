from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import msgspec
import pytest
import tqdm
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, TextColumn

from lightning_perf.records import SEVERITIES, AppliedTreatment, HostMemory, HostPhaseMemory, PhaseTime
from lightning_perf.reports.cells import Value
from lightning_perf.reports.console import (
    brief_report,
    emit,
    epoch_document,
    preflight_document,
    session_document,
    to_text,
)
from lightning_perf.reports.document import Document, section, table
from lightning_perf.reports.render.markdown import render
from lightning_perf.rules.findings import fact, make_finding
from reports.sessions import (
    GIB,
    LOGGING_EVERY_STEP,
    SESSIONS,
    SHARES,
    STARVED_BY_LOADER,
    ddp,
    hostile,
    starved,
    twelve_findings,
)
from tests.golden_files import assert_golden
from tests.terminal import TerminalFile

WIDTHS = (60, 80, 200)
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SESSIONS)
def test_run_report_matches_its_golden_file(name: str, width: int) -> None:
    assert_golden(f"reports/run_{name}_{width}.txt", to_text(session_document(SESSIONS[name]()), width))


@pytest.mark.parametrize("name", SESSIONS)
def test_epoch_report_matches_its_golden_file(name: str) -> None:
    assert_golden(f"reports/epoch_{name}_80.txt", to_text(epoch_document(SESSIONS[name](), 2)))


def test_run_report_matches_its_golden_file_when_all_rules_are_shown() -> None:
    assert_golden("reports/run_starved_80_all.txt", to_text(session_document(starved(), show_all=True)))


def test_run_report_matches_its_golden_file_when_output_is_ascii() -> None:
    text = to_text(session_document(hostile()), 80, "ascii")
    text.encode("ascii")
    assert_golden("reports/run_hostile_80_ascii.txt", text)


def test_preflight_report_matches_its_golden_file() -> None:
    finding = msgspec.structs.replace(LOGGING_EVERY_STEP, is_preflight=True, confidence="low")
    assert_golden("reports/preflight_80.txt", to_text(preflight_document([finding])))


@pytest.mark.parametrize("name", SESSIONS)
def test_run_report_starts_with_the_verdict(name: str) -> None:
    session = SESSIONS[name]()
    first = to_text(session_document(session), 200).splitlines()[0]
    assert first.startswith("PerfDoctor: ")
    if session.verdict.code:
        assert session.verdict.code in to_text(session_document(session), 200).split("finished")[0]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SESSIONS)
def test_report_stays_within_the_width_except_for_code(name: str, width: int) -> None:
    session = SESSIONS[name]()
    code = {line.strip() for f in session.findings for p in f.prescriptions for line in p.code.splitlines()}
    for report in (session_document(session, show_all=True), epoch_document(session, 0)):
        too_long = [line for line in to_text(report, width).splitlines() if len(line) > width]
        assert all(name == "hostile" or line.strip() in code for line in too_long)


def test_report_keeps_code_whole_when_it_is_longer_than_the_line() -> None:
    text = to_text(session_document(starved()), 60)
    assert "DataLoader(dataset, batch_size=32, num_workers=2, persistent_workers=True)\n" in text


def test_table_keeps_names_and_units_when_the_terminal_is_too_narrow_for_its_numbers() -> None:
    heads = ("module", "FLOPs", "share", "bytes", "FLOP/byte", "time")
    row = ("encoder", *(Value(text, 1.0) for text in ("246 k", "100 %", "68.1 KiB", "3.53", "11.6 ms")))
    one = table(heads, [row], bars="time")
    text = to_text(Document(None, (), (section("modules", "", [one]),)), 40)
    assert max(map(len, text.splitlines())) <= 40
    assert {"encod", "KiB", "ms", "100 %"} <= {part for line in text.splitlines() for part in re.split("  +", line)}
    assert "█" not in text


def test_table_names_the_number_of_rows_that_are_left_out() -> None:
    one = table(("module",), [(f"layer {i}",) for i in range(20)], n_brief=3)
    document = Document(None, (), (section("modules", "", [one]),))
    assert to_text(document).splitlines() == ["module", "layer 0", "layer 1", "layer 2", "… and 17 more"]
    assert render(document).endswith("| layer 2 |\n\n… and 17 more\n")


def test_evidence_keeps_its_name_in_one_line_when_no_evidence_has_a_basis() -> None:
    found = make_finding("info", "", [fact("steps", 21), fact("loaded twice", "2 files")])
    session = msgspec.structs.replace(starved(), findings=(found,))
    assert "        loaded twice  2 files\n" in to_text(session_document(session), 80)


def test_evidence_is_wrapped_when_its_value_is_a_long_text() -> None:
    reason = "the device side was not recorded, perhaps because another profiler was active at the same time"
    found = make_finding("info", "", [fact("window at step 0: empty", reason)])
    text = to_text(session_document(msgspec.structs.replace(starved(), findings=(found,))), 80)
    assert reason in " ".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_report_has_no_control_characters_when_names_are_hostile(width: int) -> None:
    for report in (session_document(hostile(), show_all=True), epoch_document(hostile(), 1)):
        text = to_text(report, width)
        assert not CONTROL.search(text)
        assert "[bold]x[/bold]" in text
        assert len(text) < 12_000


def test_phases_add_up_to_the_wall_time_in_the_run_report() -> None:
    text = to_text(session_document(starved()))
    shares = [float(s) for s in re.findall(r"(\d+\.\d) %  ", text.split("Findings")[0])]
    assert len(shares) == 7
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_phases_add_up_when_some_time_is_in_no_phase() -> None:
    base = starved()
    assert base.steady is not None
    phases = {"forward": PhaseTime(total_s=6.0, share=0.5, p50_s=0.015, p95_s=0.02)}
    steady = msgspec.structs.replace(base.steady, span_s=12.0, phases=phases)
    text = to_text(session_document(msgspec.structs.replace(base, steady=steady)))
    assert re.search(r"unaccounted +█+ +50\.0 %  6\.00 s", text)


def test_breakdown_lists_the_largest_phase_first_and_folds_the_small() -> None:
    lines = to_text(session_document(starved())).split("Findings")[0].splitlines()
    rows = [line for line in lines if re.search(r"\d\.\d %", line)]
    assert rows[0].startswith("data wait")
    assert rows[-1].startswith("4 smaller")
    assert "checkpoint" not in "".join(rows)
    assert "checkpoint" in SHARES


def test_run_report_shows_every_finding_with_evidence_fix_speedup_and_certainty() -> None:
    text = to_text(session_document(starved()), 100)
    for part in ("high    PD101 starved-by-loader  speedup 1.7–2.1x, diagnosis certain",
                 "54 %  (limit 20 %, n 400)", "(effort: one line, results unchanged)",
                 "basis waiting is exclusive", "speedup up to 1.04x"):  # fmt: skip
        assert part in text


def test_run_report_orders_findings_by_verdict_then_severity() -> None:
    text = to_text(session_document(twelve_findings()), 100)
    found = re.findall(r"^(high|medium|low|info) +(PD\d+)", text, re.M)
    assert found[0] == ("high", "PD101")
    ranks = [SEVERITIES.index(severity) for severity, _ in found]  # type: ignore[arg-type]
    assert len(found) == 12
    assert ranks == sorted(ranks)


def test_run_report_shows_main_figures_missing_and_all_when_requested() -> None:
    missing = {"settings.a": "no such flag", "steady.phases": "no clock", "memory.gpu": "no driver", "windows": "off"}
    session = msgspec.structs.replace(starved(), missing=missing)
    assert "missing   memory.gpu: no driver; steady.phases: no clock; and 1 more\n" in to_text(
        session_document(session), 100
    )
    text = to_text(session_document(session, show_all=True), 100)
    assert "more" not in text
    assert re.search(r"^settings\.a +no such flag$", text, re.M)


def test_epoch_report_shows_three_findings_and_names_the_rest() -> None:
    text = to_text(epoch_document(twelve_findings(), 0), 200)
    assert len(re.findall(r"^(?:high|medium|low|info) ", text, re.M)) == 3
    assert "also: PD602 example-finding-2 (medium)" in text
    assert "PD610" in text


def test_epoch_report_marks_a_finding_as_before_when_it_is_unchanged() -> None:
    text = to_text(epoch_document(starved(), 1, previous=starved()))
    assert "as before: PD101 starved-by-loader (high), PD502 logging-every-step (low)" in text
    assert "DataLoader(" not in text


def test_epoch_report_repeats_a_finding_when_it_got_worse() -> None:
    milder = msgspec.structs.replace(STARVED_BY_LOADER, severity="medium")
    previous = msgspec.structs.replace(starved(), findings=(milder,))
    text = to_text(epoch_document(starved(), 1, previous))
    assert "DataLoader(" in text
    assert "as before" not in text


def test_epoch_report_names_the_epoch_when_it_was_not_recorded() -> None:
    assert "epoch 17" in to_text(epoch_document(starved(), 17))


def test_report_marks_a_finding_when_it_comes_from_settings_alone() -> None:
    text = " ".join(to_text(session_document(twelve_findings())).split())
    assert "likely, from settings alone, not measured" in text


def test_emit_writes_no_escape_sequences_and_no_trailing_blanks_when_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    emit(session_document(starved()), stream=stream)
    assert "\x1b" not in stream.getvalue()
    assert not re.search(r"[ \t]+$", stream.getvalue(), re.M)


def test_emit_shows_text_unchanged_when_it_looks_like_markup() -> None:
    stream = io.StringIO()
    emit("[bold]x[/bold] [/]", stream=stream)
    assert stream.getvalue() == "[bold]x[/bold] [/]\n"


def test_emit_replaces_signs_when_stream_is_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    emit(session_document(starved()), stream=stream)
    stream.flush()
    assert b"speedup 1.7-2.1x" in raw.getvalue()
    assert b"####" in raw.getvalue()


def test_emit_writes_to_standard_output_when_no_stream_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    emit("hello")
    assert capsys.readouterr().out == "hello\n"


def in_notebook(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Make rich believe that this is a notebook; return what it displays there."""
    shown: list[object] = []
    display = ModuleType("IPython.display")
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)
    assert Console().is_jupyter
    return shown


def test_emit_raises_and_leaves_standard_output_when_a_terminal_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    class Gone(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        emit("the report", stream=Gone())
    os.write(1, b"still there")
    assert capfd.readouterr().out == "still there"


@pytest.mark.parametrize("has_rich_bar", [False, True])
def test_emit_writes_plain_text_when_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_rich_bar: bool
) -> None:
    shown = in_notebook(monkeypatch)
    emit(brief_report(starved()), display=Live() if has_rich_bar else None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PerfDoctor  54 %")
    assert max(map(len, lines)) <= 80
    assert not any(re.search(r"[\x00-\x1f]", line) for line in lines)
    assert shown == []


def test_emit_starts_a_new_line_and_redraws_nothing_when_a_tqdm_bar_is_in_a_log_file() -> None:
    log = io.StringIO()
    with tqdm.tqdm(total=10, file=log, ncols=60, mininterval=0) as bar:
        bar.update(3)
        before = log.getvalue()
        emit("the report", stream=log)
        assert log.getvalue() == before + "\nthe report\n"


def test_emit_starts_no_new_line_when_the_tqdm_bar_is_in_another_file() -> None:
    log = io.StringIO()
    with tqdm.tqdm(total=10, file=io.StringIO(), ncols=60, mininterval=0):
        emit("the report", stream=log)
    assert log.getvalue() == "the report\n"


def test_emit_does_not_tear_a_live_tqdm_bar() -> None:
    screen = TerminalFile()
    with tqdm.tqdm(total=10, file=screen, ncols=60, mininterval=0) as bar:
        bar.update(3)
        emit("the report", stream=screen)
        bar.update(3)
    lines = screen.lines()
    assert "the report" in lines
    assert [line for line in lines if "it/s" in line or "s/it" in line or "%" in line] == [lines[-2]]


def test_emit_prints_above_a_live_rich_display() -> None:
    screen = TerminalFile()
    with Live("the bar", console=Console(file=screen, force_terminal=True, width=80), auto_refresh=False) as live:
        emit(epoch_document(starved(), 1), display=live)
    lines = screen.lines()
    assert lines[0].startswith("PerfDoctor:")
    assert [line for line in lines if line][-1] == "the bar"
    assert "DataLoader(dataset, batch_size=32, num_workers=2, persistent_workers=True)" in "".join(lines)


def test_emit_overwrites_nothing_when_a_rich_display_loses_a_bar_meanwhile() -> None:
    screen = TerminalFile()
    console = Console(file=screen, force_terminal=True, width=80)

    class RedrawnMeanwhile:
        """Text during whose drawing the display's thread redraws its bars."""

        def __rich_console__(self, *_: object) -> Iterator[str]:
            thread = threading.Thread(target=progress.refresh)
            thread.start()
            thread.join()
            yield "second"

    with Progress(TextColumn("{task.description}"), console=console, auto_refresh=False) as progress:
        progress.add_task("training")
        validating = progress.add_task("validating")
        emit("first", display=progress)
        progress.update(validating, visible=False)
        emit(RedrawnMeanwhile(), display=progress)
    assert [line for line in screen.lines() if line] == ["first", "second", "training"]


def test_run_report_lists_applied_and_rejected_treatments() -> None:
    applied = (
        AppliedTreatment(treatment="loader-workers=4", finding="PD101", epoch=1, status="applied"),
        AppliedTreatment(
            treatment="loader-prefetch", finding="PD105", epoch=2, status="refused", reason="no\x1b[2J workers"
        ),
    )
    text = " ".join(to_text(session_document(msgspec.structs.replace(starved(), applied=applied)), 200).split())
    assert "loader-workers=4 from epoch 1 on (PD101); figures include the time before" in text
    assert "loader-prefetch was refused: no" in text
    assert "\x1b" not in text


def test_host_memory_by_phase_is_shown_when_the_device_has_no_readings() -> None:
    session = ddp()
    phases = (HostPhaseMemory(phase="forward", n=4, rss_bytes=3 * GIB),)
    host = HostMemory(rss_bytes=3 * GIB, phases=phases)
    memory = msgspec.structs.replace(session.memory, host=host)

    assert session.memory.devices
    assert "after forward 3.00 GiB resident\n" in to_text(
        session_document(msgspec.structs.replace(session, memory=memory)), 80
    )
