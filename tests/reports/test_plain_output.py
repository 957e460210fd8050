"""Clarity of the output on a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
import tqdm
from rules.session_builder import build_session

from lightning_perf.records import (
    Arm,
    ArmRun,
    Finding,
    Gain,
    Growth,
    Headroom,
    HostTelemetry,
    Interval,
    ModelProfile,
    Overhead,
    Session,
    Telemetry,
    TimeChange,
    Trial,
    Window,
)
from lightning_perf.reports import wording
from lightning_perf.reports.brief import brief_report
from lightning_perf.reports.brief_epochs import brief_epoch
from lightning_perf.reports.console import emit, session_document, to_text, trial_document
from lightning_perf.reports.fixes import fix_groups, fix_text
from lightning_perf.reports.sections.about import missing_rows, overhead_fact
from lightning_perf.reports.sections.comparison import comparison_document
from lightning_perf.reports.sections.memory import growth_text, headroom_fact
from lightning_perf.rules.engine import all_rules, diagnose
from lightning_perf.rules.findings import trainer_fix
from lightning_perf.rules.verdict import expectation, verdict_of
from lightning_perf.rules.wording import duration
from lightning_perf.treatments.specs import all_treatments
from lightning_perf.trials.progress import Progress
from lightning_perf.trials.rounds import Plan, PlannedRun
from lightning_perf.trials.sizes import Sizes
from lightning_perf.trials.trial import Options, State
from reports.comparisons import alike
from reports.sessions import LOGGING_EVERY_STEP, STARVED_BY_LOADER, loader_probed, memory_sampled, spread, starved
from reports.trials import climbed
from tests.terminal import TerminalFile

MIXED_SIGNS = re.compile(r"\d ?us\b|\d ?μs|\d×|\d-\d[\d.]*x")
"""Other signs for what is written ``µs``, ``x`` and ``–``."""
DURATION = re.compile(r"(?<![\d.,])((\d+(?:\.\d+)?) (?:ns|µs|ms|s))\b")
REPORTS = [file for file in sorted((Path(__file__).parents[1] / "golden" / "reports").iterdir())
           if "ascii" not in file.name]  # fmt: skip


def with_host(session: Session, **changes: object) -> Session:
    host = HostTelemetry(n_samples=50, **changes)  # type: ignore[arg-type]
    return msgspec.structs.replace(session, telemetry=Telemetry(hz=1.0, host=host))


def with_findings(*findings: Finding) -> Session:
    return msgspec.structs.replace(starved(), findings=findings)


# -- caution next to the verdict ----------------------------------------------------


def test_caution_is_next_to_the_verdict_when_other_programs_use_the_cores() -> None:
    session = with_host(starved(), cpu_busy_fraction=spread(0.9), process_cpu_cores=spread(1.0))
    lines = to_text(brief_report(session)).splitlines()
    assert lines[1].strip() == "caution: other programs used 0.8 of 2 cores; run again without them"


def test_no_caution_is_shown_when_the_training_alone_uses_the_cores() -> None:
    session = with_host(starved(), cpu_busy_fraction=spread(0.9), process_cpu_cores=spread(1.7))
    assert "caution" not in to_text(brief_report(session))


def test_caution_is_next_to_the_verdict_when_step_times_changed_during_the_run() -> None:
    session = diagnose(build_session({"steady": {"is_steady": False}, "shares": {"logging": 0.3}}))
    assert "caution: step time changed by over 10 %" in to_text(brief_report(session))


# -- one scope -----------------------------------------------------------------------------------


def test_time_of_the_loader_probe_is_named_however_short_it_was() -> None:
    session = diagnose(loader_probed())
    assert session.loader_probe is not None
    for share in (0.5, 0.01):
        probe = msgspec.structs.replace(session.loader_probe, wall_s=share * session.run.wall_s)
        text = to_text(brief_report(msgspec.structs.replace(session, loader_probe=probe)))
        assert "loader probe)" in text


def test_headline_and_bars_name_the_same_share_when_data_is_waited_for() -> None:
    text = to_text(brief_report(diagnose(starved())))
    headline = re.search(r"PerfDoctor  (\d+) % of training time is spent waiting for data", text)
    bar = re.search(r"data wait\s+(\d+) %", text)
    assert headline is not None
    assert bar is not None
    assert headline[1] == bar[1]


# -- a next step, with the path ------------------------------------------------------------------


@pytest.mark.parametrize("show_all", [False, True])
def test_full_report_ends_with_commands_for_its_own_session_when_it_was_saved(show_all: bool) -> None:
    text = to_text(session_document(starved(), show_all, "perf_logs/demo"))
    assert "SESSION" not in text
    for command in ("lightning-perf trial -- ", "lightning-perf explain PD101", "report perf_logs/demo --format html",
                    "compare perf_logs/demo NEW_RUN", "tensorboard --logdir perf_logs/demo"):  # fmt: skip
        assert command in text


@pytest.mark.parametrize(
    ("place", "logdir"),
    [("perf_logs/demo/perf_session_predict.json", "perf_logs/demo"), ("s3://bucket/demo", None)],
)
def test_full_report_names_the_folder_for_tensorboard_when_it_is_a_local_one(place: str, logdir: str | None) -> None:
    text = to_text(session_document(starved(), place=place))
    assert f"compare {place} NEW_RUN" in text
    assert re.findall(r"tensorboard --logdir (\S+)", text) == [logdir] * (logdir is not None)


def test_what_was_switched_off_is_not_cut() -> None:
    off = "hooks of callbacks and of the module that take less than 20 µs"
    overhead = Overhead(per_step_us=40.0, budget_us=20.0, reporting_s=0.1, share=0.01, backed_off=(off,))
    assert overhead_fact(msgspec.structs.replace(starved(), overhead=overhead)).endswith(off)


def test_overhead_names_profiler_windows_if_there_were_any() -> None:
    overhead = Overhead(per_step_us=40.0, budget_us=20.0, reporting_s=0.1, share=0.3)
    one = msgspec.structs.replace(starved(), overhead=overhead, windows=())
    window = Window(first_step=3, n_steps=3, status="recorded", reason="", cost_s=1.0)
    assert "profiler" not in overhead_fact(one)
    assert overhead_fact(msgspec.structs.replace(one, windows=(window,))).endswith(", the rest for profiler windows")


def test_long_path_stays_whole_when_a_line_is_too_short_for_it() -> None:
    place = "a very/long path/" + "x" * 90
    text = to_text(brief_report(starved(), place))
    assert f"lightning-perf report '{place}' --full\n" in text


# -- one row per cause, resolved findings --------------------------------------------------------


def test_findings_on_one_wait_are_one_row_when_they_cannot_all_save_it() -> None:
    others = tuple(
        msgspec.structs.replace(STARVED_BY_LOADER, code=code, severity="low", claims={"data_wait": seconds})
        for code, seconds in (("PD105", 3.0), ("PD106", 5.0), ("PD114", 6.6))
    )
    [group] = fix_groups(with_findings(STARVED_BY_LOADER, *others))
    assert [finding.code for finding in group] == ["PD101", "PD105", "PD106", "PD114"]


def test_findings_have_a_row_each_when_a_phase_is_long_enough_for_both() -> None:
    halves = tuple(
        msgspec.structs.replace(STARVED_BY_LOADER, code=code, claims={"data_wait": 3.0}) for code in ("PD101", "PD114")
    )
    assert len(fix_groups(with_findings(*halves))) == 2


def test_fix_and_its_speedup_are_left_out_when_it_saves_less_than_two_percent() -> None:
    tiny = msgspec.structs.replace(LOGGING_EVERY_STEP, gain=Gain(low=1.0, high=1.004, basis=""))
    session = with_findings(STARVED_BY_LOADER, tiny)
    assert [group[0].code for group in fix_groups(session)] == ["PD101"]
    assert "1.00x" not in to_text(session_document(session))


def test_high_finding_is_above_a_medium_one_when_neither_is_the_verdict() -> None:
    medium = msgspec.structs.replace(LOGGING_EVERY_STEP, code="PD601", severity="medium", claims={"validation": 0.1})
    high = msgspec.structs.replace(medium, code="PD602", severity="high", claims={"checkpoint": 0.1})
    groups = fix_groups(with_findings(medium, high, STARVED_BY_LOADER))
    assert [group[0].code for group in groups] == ["PD101", "PD602", "PD601"]


def test_epoch_reports_a_finding_as_resolved_when_the_fix_worked() -> None:
    before = diagnose(starved())
    epoch = msgspec.structs.replace(before.epochs[-1], index=5, wall_s=60.0, step_p50_s=0.015)
    report = brief_epoch(msgspec.structs.replace(diagnose(build_session()), epochs=(epoch,)), 5, before)
    assert report is not None
    [line] = to_text(report).splitlines()
    assert "PD101 resolved · healthy" in line


# -- comparisons ---------------------------------------------------------------------------------


def test_comparison_claims_no_change_when_the_runs_vary_too_much() -> None:
    wide = TimeChange(name="step", base_s=0.237, new_s=0.125, ratio=Interval(value=0.526, low=0.001, high=300.0))
    text = to_text(comparison_document(msgspec.structs.replace(alike(), times=(wide,))))
    assert "time per step was 237 ms, now 125 ms (the runs vary too much" in " ".join(text.split())
    assert "47.4 %" not in text.splitlines()[0]


def test_comparison_explains_why_its_times_differ_from_those_of_a_report() -> None:
    assert "medians of blocks of steps" in to_text(comparison_document(alike()))


# -- what is shown is not missing ----------------------------------------------------------------


def test_figures_are_not_listed_as_missing_when_they_are_shown() -> None:
    model = ModelProfile(class_name="Net", device="cpu", n_parameters=1, n_trainable=1, parameters_bytes=4)
    reasons = {"memory": "no", "model_profile": "no", "ranks": "one process"}
    session = msgspec.structs.replace(starved(), model_profile=model, missing=reasons)
    assert [what for what, _ in missing_rows(session)] == ["ranks"]


# -- a trial on a busy machine -------------------------------------------------------------------


def noisy(*means_s: float) -> Trial:
    runs = tuple(
        ArmRun(arm="baseline", repeat=i, position=i, status="ok", block_means_s=(each, each), stage=0)
        for i, each in enumerate(means_s)
    )
    arms = (Arm(id="baseline"), Arm(id="loader-workers=2", treatments=("loader-workers=2",)))
    return msgspec.structs.replace(climbed(), runs=runs, arms=arms, best="baseline", steps=50, ladder=())


def test_trial_reports_that_nothing_can_be_measured_when_the_baseline_varies() -> None:
    text = " ".join(to_text(trial_document(noisy(0.249, 0.642))).split())
    assert "Not measurable now: the baseline varies between 249 ms and 642 ms per step" in text
    assert "stop other programs, or use longer runs: --steps 100" in text


@pytest.mark.parametrize(
    ("is_steady", "expected"),
    [
        ((False, False), "change during 2 of 2 runs; stop other programs"),
        ((True, False, False), "change during 2 of 3 runs; stop other programs"),
        ((False,), ""),
        ((True, False), ""),
        ((True, False, False, True), ""),
    ],
)
def test_trial_reports_that_nothing_can_be_measured_when_baseline_runs_are_not_steady(
    is_steady: tuple[bool, ...], expected: str
) -> None:
    trial = noisy(*(0.25 for _ in is_steady))
    kept = [(run, run.block_means_s if steady else ()) for run, steady in zip(trial.runs, is_steady, strict=True)]
    runs = tuple(msgspec.structs.replace(run, block_means_s=means_s) for run, means_s in kept)
    text = " ".join(to_text(trial_document(msgspec.structs.replace(trial, runs=runs))).split())
    assert f"Not measurable now: step times of the baseline {expected}" in text if expected else "Not meas" not in text


def test_trial_warns_once_when_the_second_baseline_run_differs(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.console.file = stream = io.StringIO()
    for trial in (noisy(0.249), noisy(0.249, 0.642), noisy(0.249, 0.642, 0.3)):
        progress.ran(trial.runs[-1], trial)
    assert stream.getvalue().count("Not measurable now") == 1
    assert "Ctrl-C ends the trial" in stream.getvalue()


SIZES = Sizes(steps=60, block_steps=20, basis="steps", expected_s=1.0)


def test_trial_says_that_one_run_each_is_too_few_when_it_starts(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.console.file = stream = io.StringIO()
    for repeats in (1, 2):
        trial = msgspec.structs.replace(noisy(0.25), repeats=repeats)
        progress.planned(starved(), State(options=Options(command=()), trial=trial, plan=Plan(), sizes=SIZES))
    text = " ".join(stream.getvalue().split())
    assert "1 run each, too few for a verdict (--repeats 2)" in text
    assert "2 runs each, fewer if results are clear, more if not" in text


def test_trial_promises_no_number_of_runs_when_results_decide_it(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.console.file = stream = io.StringIO()
    for about in (4, 1):
        progress.running(
            PlannedRun(arm="baseline", treatments=(), repeat=0, stage=0, position=5), about, noisy(*[0.25] * 5)
        )
    assert stream.getvalue().splitlines() == [
        "run 6, 3 or more after it: baseline", "run 6, perhaps no more after it: baseline"
    ]  # fmt: skip


# -- overhead ------------------------------------------------------------------------------------


def test_overhead_names_no_budget_when_it_costs_more() -> None:
    overhead = Overhead(per_step_us=40.8, budget_us=20.0, reporting_s=0.1, share=0.001)
    assert "budget" not in overhead_fact(msgspec.structs.replace(starved(), overhead=overhead))


# -- recommendations that run --------------------------------------------------------------------


def test_present_value_and_loader_are_named_when_there_are_several_loaders() -> None:
    session = starved()
    validation = msgspec.structs.replace(session.settings.loaders[0], stage="val")
    settings = msgspec.structs.replace(session.settings, loaders=(*session.settings.loaders, validation))
    fix = STARVED_BY_LOADER.prescriptions[0]
    assert fix_text(fix, session) == "num_workers=2 (now 0)"
    both = msgspec.structs.replace(session, settings=settings)
    assert fix_text(fix, both) == "num_workers=2 (train loader, now 0)"


def test_abbreviation_does_not_end_the_sentence_of_a_headline_or_fix() -> None:
    first = "profile the start of the script, e.g. with cProfile"
    fix = msgspec.structs.replace(STARVED_BY_LOADER.prescriptions[0], summary=f"{first}. It is slow.", loader_args={})
    assert fix_text(msgspec.structs.replace(fix, code="")) == first
    finding = msgspec.structs.replace(STARVED_BY_LOADER, summary=f"{first}. It is slow.", prescriptions=())
    assert verdict_of(starved(), (finding,), ()).text.startswith(f"{first} (")
    assert "e.g. with cProfile " in to_text(brief_report(with_findings(finding)))


def test_brief_report_names_all_arguments_of_the_trainer_when_one_alone_would_be_refused() -> None:
    fix = trainer_fix("set both", "numerics", val_check_interval=400, check_val_every_n_epoch=None)
    finding = msgspec.structs.replace(STARVED_BY_LOADER, prescriptions=(fix,))
    text = to_text(brief_report(msgspec.structs.replace(starved(), findings=(finding,))))
    assert "set val_check_interval=400, check_val_every_n_epoch=None" in " ".join(text.replace("PD101", "").split())
    assert "Trainer(val_check_interval=400," in text
    assert "        check_val_every_n_epoch=None)" in text


def test_code_of_recommendations_uses_no_library_that_a_script_may_lack() -> None:
    golden = Path(__file__).parents[1] / "golden" / "rules"
    text = "".join(file.read_text(encoding="utf-8") for file in golden.glob("PD*.txt"))
    assert "num_workers" in text
    assert "cv2" not in text
    assert "those in use" not in text, "values to paste are final"


# -- figures without use -------------------------------------------------------------------------


@pytest.mark.parametrize(("largest", "shown"), [(567, True), (174_492_998, False)])
def test_largest_batch_is_left_out_when_it_is_not_usable(largest: int, shown: bool) -> None:
    headroom = memory_sampled().memory.headroom
    assert isinstance(headroom, Headroom)
    assert bool(headroom_fact(msgspec.structs.replace(headroom, largest_batch=largest))) is shown


def test_growth_names_no_interval_when_it_is_not_steady() -> None:
    growth = Growth(where="host", n=40, first_step=1, last_step=400, level_bytes=2**30, bytes_per_step=100.0,
                    low_bytes_per_step=10.0, high_bytes_per_step=200.0, is_steady=False)  # fmt: skip
    assert growth_text(growth) == "host: no steady growth in 40 readings"


# -- one unit for one thing ----------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(1.8, 10.7), (1.04, 1.31), (1.0, 2.2)])
def test_verdict_and_table_write_a_speedup_the_same_way(low: float, high: float) -> None:
    gain = Gain(low=low, high=high, basis="", method="timed")
    assert expectation(gain) == f"expect {wording.gain(gain)}"


def test_no_output_mixes_signs_for_units_when_rules_speak() -> None:
    session = diagnose(
        build_session({"overhead": {"per_step_us": 900, "share": 0.03, "budget_us": 20, "reporting_s": 1}})
    )
    text = to_text(session_document(session, show_all=True))
    assert duration(3.2e-4) == wording.seconds(3.2e-4) == "320 µs"
    assert not MIXED_SIGNS.search(text)


def test_rules_and_treatments_mix_no_signs_for_units_when_they_are_explained() -> None:
    texts = [text for rule in all_rules() for text in (rule.docs, rule.name)]
    texts += [text for treatment in all_treatments() for text in (treatment.summary, treatment.when)]
    assert [match[0] for text in texts if (match := MIXED_SIGNS.search(text))] == []


@pytest.mark.parametrize("file", REPORTS, ids=lambda file: file.name)
def test_report_has_one_sign_per_unit_and_three_digits_per_duration(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not MIXED_SIGNS.search(text)
    assert [text for text, number in DURATION.findall(text) if len(number.replace(".", "").lstrip("0")) > 3] == []


# -- an epoch with progress bars -----------------------------------------------------------------------


def slower_epoch() -> tuple[Session, Session]:
    """Return the sessions before and after an epoch whose steps took 20 % longer."""
    before = diagnose(starved())
    epoch = msgspec.structs.replace(before.epochs[-1], index=5, wall_s=60.0, step_p50_s=0.0368)
    return before, msgspec.structs.replace(before, epochs=(*before.epochs, epoch))


@pytest.mark.parametrize("width", [80, 200])
def test_epoch_is_one_line_above_a_tqdm_bar_when_only_its_step_time_changed(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    before, after = slower_epoch()
    report = brief_epoch(after, 5, before)
    assert report is not None
    screen = TerminalFile()
    with tqdm.tqdm(total=10, file=screen, ncols=60, mininterval=0) as bar:
        bar.update(3)
        emit(report, stream=screen)
        bar.update(3)
    lines = [line for line in screen.lines() if line]
    assert lines[0].startswith("PerfDoctor  epoch 5 · 36.8 ms/step (+20 %)")
    assert lines[0].endswith("PD101 as before")
    assert len(lines) == 2


def test_epoch_is_one_plain_line_when_output_is_a_file() -> None:
    before, after = slower_epoch()
    report = brief_epoch(after, 5, before)
    assert report is not None
    stream = io.StringIO()
    emit(report, stream=stream)
    assert stream.getvalue().count("\n") == 1
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", stream.getvalue())
