"""The Python interface: arguments, help, results, printed text and output in notebooks."""

from __future__ import annotations

import inspect
import pydoc
import warnings
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from reports.sessions import SESSIONS, healthy, starved
from reports.trials import climbed
from rich.console import Console
from rich.pretty import pretty_repr

from lightning_perf import (
    ConfigError,
    DoctorOptions,
    PerfDoctor,
    PerfDoctorError,
    memory_breakdown,
    quick_profile,
    to_text,
)
from lightning_perf.options import FREQUENT, NAMES
from lightning_perf.records import Machine

SCREEN_LINES, SCREEN_COLUMNS = 50, 80


def after_run(session: Any) -> PerfDoctor:
    doctor = PerfDoctor()
    doctor.session = session
    return doctor


def texts_in(html: str | None) -> str:
    assert html is not None
    parser, found = HTMLParser(), []
    parser.handle_data = found.append  # type: ignore[method-assign]
    parser.feed(html)
    return " ".join(found)


# -- arguments ----------------------------------------------------------------


def test_callback_has_nine_frequent_arguments_and_one_for_the_rest() -> None:
    parameters = inspect.signature(PerfDoctor).parameters.values()
    named = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    assert sorted(named) == sorted([*FREQUENT, "options"])
    assert len(FREQUENT) == 9


def test_help_fits_a_screen() -> None:
    shown = pydoc.plain(pydoc.render_doc(PerfDoctor)).partition(" |  Method resolution order")[0]
    lines = shown.splitlines()[2:]
    # From Python 3.13 on, pydoc shows a long signature with one argument per line.
    first = next(index for index, line in enumerate(lines) if line.startswith(" |  PerfDoctor("))
    last = next(index for index, line in enumerate(lines) if index >= first and ") -> " in line)
    lines[first : last + 1] = [" ".join(line.strip(" |") for line in lines[first : last + 1])]
    assert sum(max(1, -(-len(line) // SCREEN_COLUMNS)) for line in lines) <= SCREEN_LINES
    assert all(f" {name}:" in shown for name in (*FREQUENT, "options"))


def test_every_option_is_documented() -> None:
    documented = inspect.cleandoc(DoctorOptions.__doc__ or "")  # Python 3.13 and newer strip the indentation themselves
    assert all(f"\n    {name}: " in documented for name in NAMES)


@pytest.mark.parametrize(
    ("name", "value"),
    [("progress", True), ("every_n_epochs", 3), ("profiler", {"with_stack": True}), ("price_per_hour", 2.5)],
)
def test_old_argument_works_with_one_deprecation_line(name: str, value: Any) -> None:
    with pytest.warns(DeprecationWarning, match=rf"PerfDoctor\({name}=\.\.\.\) is deprecated") as seen:
        doctor = PerfDoctor(**{name: value})
    (warning,) = seen
    assert warning.filename == __file__
    assert getattr(doctor.options, name) == value


def test_default_of_an_old_argument_changes_nothing_and_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doctor = PerfDoctor(memory=True, options=DoctorOptions(memory=False))
    assert doctor.options == DoctorOptions(memory=False)


@pytest.mark.parametrize("options", [DoctorOptions(module_depth=2, memory=False), {"module_depth": 2, "memory": False}])
def test_options_are_an_object_or_its_fields(options: Any) -> None:
    assert PerfDoctor(options=options).options == DoctorOptions(module_depth=2, memory=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedul": None}, "PerfDoctor has no argument 'schedul'; did you mean 'schedule'?"),
        ({"progres": True}, "PerfDoctor has no argument 'progres'; did you mean 'progress'?"),
        ({"options": {"progres": True}}, "DoctorOptions has no field 'progres'; did you mean 'progress'?"),
        ({"qqqq": 1}, "PerfDoctor has no argument 'qqqq'; expected one of schedule, reports"),
        ({"options": 3}, "options=3: expected a DoctorOptions, a dict of its fields, or None"),
        ({"options": {"memory": 3}}, "memory=3: expected True or False"),
    ],
)
def test_wrong_argument_is_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PerfDoctor(**arguments)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


# -- results ------------------------------------------------------------------


def test_results_are_empty_before_the_first_run() -> None:
    doctor = PerfDoctor()
    assert doctor.session is None
    assert doctor.verdict is None
    assert doctor.findings == ()
    assert repr(doctor) == "PerfDoctor(no run yet)"
    assert doctor._repr_html_() is None
    with pytest.raises(PerfDoctorError, match=r"PerfDoctor has nothing to report yet: call trainer\.fit") as raised:
        doctor.report()
    assert "(ddp_spawn, ddp_notebook), read perf_session.json" in str(raised.value)  # the callback is only a copy there


def test_results_are_those_of_the_session_after_a_run() -> None:
    session = starved()
    doctor = after_run(session)
    assert doctor.verdict == session.verdict
    assert doctor.findings == session.findings
    assert session.verdict.text in repr(doctor)
    assert len(repr(doctor).splitlines()) == 1
    assert "data wait" in texts_in(doctor._repr_html_())


def test_report_is_brief_and_complete_when_requested() -> None:
    doctor = after_run(starved())
    brief, full = str(doctor.report()), str(doctor.report(full=True))
    assert brief.startswith("PerfDoctor  ")
    assert len(brief.splitlines()) <= 15
    assert len(full.splitlines()) > 15
    assert repr(doctor.report()) == brief
    brief_html, full_html = (texts_in(doctor.report(full=full)._repr_html_()) for full in (False, True))
    assert "data wait" in brief_html
    assert "Not measured" not in brief_html
    assert "Not measured" in full_html


@pytest.mark.parametrize("name", SESSIONS)
def test_session_prints_briefly(name: str) -> None:
    session = SESSIONS[name]()
    assert len(repr(session).splitlines()) == 1
    lines = str(session).splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80


def test_session_is_brief_when_rich_prints_it() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(starved())
    assert len(captured.get().splitlines()) < 15


def test_finding_prints_evidence_and_fix() -> None:
    finding = starved().findings[0]
    assert repr(finding) == f"Finding({finding.code} {finding.name}, {finding.severity}: {finding.summary})"
    text = str(finding)
    assert finding.prescriptions[0].summary in text
    assert finding.evidence[0].metric in text


def test_trial_prints_its_ladder_and_other_records_their_fields() -> None:
    assert "baseline" in str(climbed())
    machine = Machine(os="Linux", python="3.11")
    assert to_text(machine) is None
    assert str(machine) == repr(machine)


def test_healthy_run_prints_in_three_lines() -> None:
    assert len(str(healthy()).splitlines()) <= 3


# -- without a training -------------------------------------------------------


def test_profile_has_plain_figures_prints_briefly_and_shows_itself_in_notebooks() -> None:
    model = torch.nn.Linear(8, 4)
    profile = quick_profile(model, torch.randn(16, 8), seconds=0.01, ceilings=False)
    record = profile.record
    assert record.forward_s is not None
    assert record.step_s is not None
    assert record.memory is not None
    assert (profile.parameters, profile.forward_flops) == (36, 2 * 16 * 8 * 4)
    assert (profile.latency_p50_s, profile.latency_p95_s) == (record.forward_s.p50, record.forward_s.p95)
    assert profile.samples_per_s == 16 / record.step_s.p50
    assert profile.peak_memory_bytes == record.memory.parts_bytes
    assert profile.bound == record.bound
    assert "forward_flops" in dir(profile)
    assert len(str(profile).splitlines()) <= 12
    assert "36 parameters" in str(profile)
    assert "addmm" not in str(profile)
    assert "addmm" in profile.report()
    assert "addmm" in texts_in(profile._repr_html_())


def test_breakdown_prints_briefly_and_shows_itself_in_notebooks() -> None:
    breakdown = memory_breakdown(torch.nn.Linear(8, 4))
    assert len(str(breakdown).splitlines()) <= 12
    assert "parameters" in repr(breakdown)
    assert "parameters" in texts_in(breakdown._repr_html_())


def test_trial_prints_one_line_in_the_interpreter_and_itself_in_notebooks() -> None:
    trial = climbed()
    assert repr(trial) == "Trial(finished, 27 runs, 2.31x with loader-workers=4+precision-bf16)"
    assert pretty_repr(trial, max_width=100) == (
        "Trial(status='finished', runs='27 runs', best='2.31x with loader-workers=4+precision-bf16')"
    )
    assert "2.31x faster" in str(trial)
    assert "2.31x faster" in texts_in(trial._repr_html_())
