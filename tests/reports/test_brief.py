"""The brief report: at most 15 lines of 80 columns for a run, 1 to 3 for an epoch."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rules.session_builder import build_session

from lightning_perf.cli.demo import FAULTS
from lightning_perf.records import (
    Breakdown,
    Growth,
    MissingRank,
    ModelProfile,
    OutOfMemory,
    Overhead,
    Prescription,
    Session,
    Suspect,
    Verdict,
    Window,
)
from lightning_perf.records.loader_probe import LoaderProbe
from lightning_perf.reports.brief import MAX_LINES, MAX_WIDTH, brief_report
from lightning_perf.reports.brief_epochs import brief_epoch, brief_news, brief_preflight
from lightning_perf.reports.console import emit, short_path, to_text
from lightning_perf.rules.engine import diagnose
from reports.sessions import GIB, LOGGING_EVERY_STEP, SESSIONS, ddp, healthy, hostile, starved, twelve_findings
from reports.test_rank_section import ranks_of
from reports.trials import climbed
from tests.golden_files import assert_golden
from tests.rules.case_files import load_cases

CASES = Path(__file__).parents[1] / "rules" / "cases"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def out_of_memory() -> Session:
    """Return a run whose device ran out of memory in its 13th step, diagnosed."""
    base = SESSIONS["memory_sampled"]()
    oom = OutOfMemory(
        where="device",
        error="OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.1 GiB free",
        step=12,
        phase="forward",
        code="model.py:31 in forward",
        requested_bytes=2 * 2**30,
        batch_shapes={"batch": (64, 3, 224, 224)},
        n_samples=64,
        post_mortem_file="out_of_memory.txt",
        checkpoint="/logs/checkpoints/epoch=3.ckpt",
    )
    run = msgspec.structs.replace(base.run, status="failed", error="OutOfMemoryError", n_steps=12)
    devices = [msgspec.structs.replace(each, total_bytes=42 * GIB) for each in base.memory.devices]
    memory = msgspec.structs.replace(base.memory, oom=oom, devices=tuple(devices))
    return diagnose(msgspec.structs.replace(base, run=run, memory=memory, steady=None, findings=()))


def two_ranks() -> Session:
    """Return a run of two ranks, diagnosed, whose second rank waits 20 ms longer for its data."""
    session = ddp()
    run = msgspec.structs.replace(session.run, world_size=2)
    return diagnose(msgspec.structs.replace(session, run=run, ranks=ranks_of(2, {1: 0.02})))


def interrupted() -> Session:
    session = starved()
    run = msgspec.structs.replace(session.run, status="interrupted", error="KeyboardInterrupt")
    return diagnose(msgspec.structs.replace(session, run=run))


def abnormal() -> Session:
    """Return a run with growing memory and high overhead, diagnosed."""
    session = starved()
    growth = Growth(where="host", n=200, first_step=20, last_step=400, level_bytes=2**30, bytes_per_step=5e5,
                    low_bytes_per_step=4e5, high_bytes_per_step=6e5, is_steady=True)  # fmt: skip
    overhead = Overhead(per_step_us=4_400.0, budget_us=20.0, reporting_s=0.9, share=0.031)
    memory = msgspec.structs.replace(session.memory, growth=(growth,))
    run = msgspec.structs.replace(session.run, wall_s=90.0)
    return diagnose(msgspec.structs.replace(session, run=run, memory=memory, overhead=overhead))


def demo(fault: str) -> Session:
    """Return a diagnosed run with the fault that the demo plants, from the cases of its rule."""
    code = FAULTS[fault].code
    if code is None:
        return diagnose(build_session())
    cases = load_cases(CASES / f"{code}.yml")
    case = next(case for case in cases if case["expect"] == "finding")
    session = build_session(case["session"])
    assert session.steady is not None
    steady = session.steady
    run = msgspec.structs.replace(session.run, n_steps=steady.n_steps + steady.n_warmup_steps, wall_s=steady.span_s + 2)
    return diagnose(msgspec.structs.replace(session, run=run))


RUNS: dict[str, Callable[[], Session]] = {
    **SESSIONS,
    **{
        name: functools.partial(lambda make: diagnose(make()), SESSIONS[name])
        for name in ("starved", "ddp", "memory_sampled", "loader_probed")
    },
    "out_of_memory": out_of_memory,
    "two_ranks": two_ranks,
    "interrupted": interrupted,
    "abnormal": abnormal,
    **{f"demo_{fault}": functools.partial(demo, fault) for fault in FAULTS},
}


def text_of(session: Session, width: int = MAX_WIDTH) -> str:
    return to_text(brief_report(session, "perf_logs/demo"), width)


@pytest.mark.parametrize("name", RUNS)
def test_brief_report_matches_its_golden_file(name: str) -> None:
    assert_golden(f"reports/brief_{name}.txt", text_of(RUNS[name]()))


@pytest.mark.parametrize("fault", FAULTS)
def test_steps_of_a_demo_take_no_longer_than_its_run(fault: str) -> None:
    session = demo(fault)
    assert session.steady is not None
    assert session.run.n_steps * session.steady.step_s.p50 <= session.run.wall_s


def test_bar_is_no_longer_than_its_column_when_a_phase_exceeds_its_span() -> None:
    session = starved()
    assert session.steady is not None
    phases = {"forward": msgspec.structs.replace(session.steady.phases["forward"], total_s=1e9)}
    steady = msgspec.structs.replace(session.steady, phases=phases)
    segments = brief_report(msgspec.structs.replace(session, steady=steady, findings=())).lines
    assert max(text.count("█") for line in segments for text, _ in line.segments) == 30


def test_phase_row_names_the_part_of_the_first_line() -> None:
    text = text_of(demo("no-persistent-workers"))
    assert text.startswith("PerfDoctor  28 % of training time")
    assert re.search(r"^  epoch boundary +30 %  █+  of which PD104: 28 %$", text, re.M)
    assert "PD101: " not in text_of(demo("slow-transform"))  # it names the whole phase


def test_phase_rows_name_the_module_that_takes_most_of_them() -> None:
    def rows_with(**backward_s: float) -> list[str]:
        modules = [
            {"path": path, "class_name": "Net", "n_parameters": 1, "forward_s": each_s, "backward_s": backward_s[path]}
            for path, each_s in (("encoder", 0.7), ("head", 0.3))
        ]
        profile = msgspec.convert(
            {"class_name": "M", "device": "cpu", "n_parameters": 2, "n_trainable": 2, "parameters_bytes": 8,
             "modules": modules},
            ModelProfile,
        )  # fmt: skip
        session = msgspec.structs.replace(demo("slow-transform"), model_profile=profile)
        return re.findall(r"^  (\w+) .*█  (mostly .*)$", text_of(session), re.M)

    both = [("forward", "mostly encoder: 70 %"), ("backward", "mostly encoder: 80 %")]
    assert sorted(rows_with(encoder=0.8, head=0.2)) == sorted(both)
    assert rows_with(encoder=0.2, head=0.8) == both[:1]  # e.g. a gradient penalty


def test_interrupted_run_names_what_interrupted_it() -> None:
    assert text_of(interrupted()).splitlines()[2].startswith("interrupted (Ctrl-C) · 420 steps")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("name", RUNS)
def test_brief_report_has_at_most_15_lines_of_80_columns(name: str, width: int) -> None:
    lines = text_of(RUNS[name](), width).splitlines()
    assert len(lines) <= MAX_LINES or width < MAX_WIDTH
    assert max(map(len, lines)) <= MAX_WIDTH
    commands = ("measure ", "details ", "explain ")
    to_copy = (*commands, "resume ", "memory  ")  # never cut: a part of a command or path cannot be copied
    assert max(len(line) for line in lines if not line.startswith(to_copy)) <= width
    assert all("lightning-perf" in line for line in lines if line.startswith(commands))


@pytest.mark.parametrize("width", [40, 70])
def test_lines_are_wrapped_but_for_bars_when_the_console_is_narrow(width: int) -> None:
    def words(columns: int) -> list[str]:
        lines = [line for line in text_of(starved(), columns).splitlines() if "lightning-perf" not in line]
        return sorted(" ".join(line for line in lines if "█" not in line).split())

    assert words(width) == words(80)
    first = " ".join(text_of(starved(), width).split())
    assert first.startswith("PerfDoctor PD101 54 % of the time waits for data: set num_workers=2")


def test_brief_report_has_three_lines_when_the_run_is_healthy() -> None:
    lines = text_of(healthy()).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("PerfDoctor  ")
    assert lines[2].startswith("details  lightning-perf report perf_logs/demo --full ")


def test_findings_that_claim_the_same_seconds_share_one_row() -> None:
    text = text_of(twelve_findings())
    assert len(re.findall(r"^\d PD", text, re.M)) == 2
    assert "others" not in text


def test_more_than_three_fixes_are_counted() -> None:
    session = twelve_findings()
    findings = tuple(
        msgspec.structs.replace(finding, claims={f"phase {i}": 1.0}) for i, finding in enumerate(session.findings)
    )
    text = text_of(msgspec.structs.replace(session, findings=findings))
    n_shown = len(re.findall(r"^\d PD", text, re.M))
    assert 2 <= n_shown <= 3
    n_more = re.search(r"fix \(\+(\d+) more\b", text)
    assert n_more is not None
    assert n_shown + int(n_more[1]) == 8


def test_speedup_is_the_measured_one_when_a_trial_tried_the_fix() -> None:
    session = msgspec.structs.replace(twelve_findings(), trials=(climbed(),))
    text = text_of(session)
    assert re.search(r"^1 PD101 train DataLoader\(num_workers=2\), now 0 +1.8x measured +one line", text, re.M)
    assert "lightning-perf trial" in text  # the second fix was not measured with success
    assert "x measured" not in text_of(twelve_findings()).replace('"up to": not measured', "")


@pytest.mark.parametrize("name", ["healthy", "starved", "loader_probed", "ddp", "abnormal", "twelve_findings"])
def test_memory_is_part_of_the_second_line_of_figures(name: str) -> None:
    [facts] = [line for line in text_of(RUNS[name]()).splitlines() if " steps · " in line]
    assert "memory 40.0 of 141 GiB" in facts if name == "ddp" else "memory 799 MiB" in facts


def test_abnormal_measurements_are_shown_and_normal_ones_are_not() -> None:
    text = text_of(abnormal())
    assert "Host memory grows" in text
    assert "overhead 3.1 % of the run" in text
    normal = text_of(starved())
    assert not any(word in normal for word in ("overhead", "grows", "skipped", "missing"))


def growing(*places: str, suspects: tuple[Suspect, ...] = ()) -> Session:
    """Return a starved run whose memory grows, before its diagnosis."""
    session = starved()
    growth = tuple(
        Growth(where=where, n=200, first_step=20, last_step=400, level_bytes=2**30, bytes_per_step=5e5,
               low_bytes_per_step=4e5, high_bytes_per_step=6e5, is_steady=True, suspects=suspects)
        for where in places
    )  # fmt: skip
    return msgspec.structs.replace(session, memory=msgspec.structs.replace(session.memory, growth=growth))


def test_growth_is_shown_once_and_not_beside_a_fix_that_names_what_grows() -> None:
    unnamed = msgspec.structs.replace(diagnose(growing("heap", "host")), verdict=diagnose(starved()).verdict)
    assert re.findall("(heap|host) memory grows", text_of(unnamed)) == ["heap"]
    suspect = Suspect(name="LitModel.losses", kind="list", n_items=180, items_per_step=1.0)
    named = diagnose(growing("heap", "host", suspects=(suspect,)))
    assert "memory grows" not in text_of(msgspec.structs.replace(named, verdict=diagnose(starved()).verdict))


@pytest.mark.parametrize(
    ("summary", "fix", "headline"),
    [
        (
            "read (table_parsed_by_datamodule.py:46), called at table_parsed_by_datamodule.py:49, spends 74 % of step "
            "time in csv.DictReader.__next__: 10.6 ms per step outside torch operators, in transfer.",
            "move read out of the step, or do it less often",
            "read (table_parsed_by_datamodule.py:46) spends 74 % of step time",
        ),
        (
            "protein_interaction_gcn.py:48 multiplies a sparse matrix of 1,800 × 1,800 as if it were dense: one in 186 "
            "of its elements is not zero; without the zeros, these operators run 4.1–8.3x faster (measured).",
            "keep the matrix sparse",
            "protein_interaction_gcn.py:48 multiplies a sparse matrix of 1,800 × 1,800 as if it were dense: keep the "
            "matrix sparse",
        ),
    ],
)
def test_headline_is_shortened_to_whole_words_that_make_sense(summary: str, fix: str, headline: str) -> None:
    base = diagnose(starved())
    first = base.findings[0]
    prescription = Prescription(treatment="", summary=fix, effort="minutes", safety="exact")
    found = msgspec.structs.replace(first, code="PD511", summary=summary, prescriptions=(prescription,))
    session = msgspec.structs.replace(
        base, findings=(found,), verdict=Verdict(category="host", text=summary, code="PD511")
    )
    lines = text_of(session).splitlines()[:2]
    shown = " ".join(" ".join(lines).replace("PerfDoctor", "").replace("PD511", "").split())
    assert shown == headline


def test_figures_and_overhead_that_do_not_fit_are_left_out_rather_than_cut() -> None:
    session = abnormal()
    steady = msgspec.structs.replace(session.steady, tokens_per_s=437_643.0)
    probe = LoaderProbe(status="measured", usable_cores=8.0, wall_s=14.6)
    overhead = Overhead(per_step_us=40.8, budget_us=20.0, reporting_s=0.4, share=0.23)
    window = Window(status="recorded", reason="planned", first_step=30, n_steps=5, cost_s=0.1)
    text = text_of(
        msgspec.structs.replace(session, steady=steady, loader_probe=probe, overhead=overhead, windows=(window,))
    )
    assert "437,643 tokens/s" in text
    assert "overhead 23 % of the run: 40.8 µs per step, 400 ms for probes and reports\n" in text
    assert "…" not in text


@pytest.mark.parametrize(("per_step_us", "n_lines"), [(50.0, 3), (5_000.0, 4)])
def test_healthy_short_run_has_three_lines_unless_measuring_slows_its_steps(per_step_us: float, n_lines: int) -> None:
    session = healthy()
    run = msgspec.structs.replace(session.run, wall_s=3.0)
    overhead = Overhead(
        per_step_us=per_step_us, budget_us=20.0, reporting_s=0.4, share=0.15, backed_off=("hooks of callbacks",)
    )
    text = text_of(diagnose(msgspec.structs.replace(session, run=run, overhead=overhead)))
    assert text.startswith("PerfDoctor  healthy")
    assert ("overhead" in text) == (per_step_us > 1_000)
    assert len(text.splitlines()) == n_lines


def test_out_of_memory_names_place_size_and_post_mortem() -> None:
    text = text_of(out_of_memory())
    for part in ("Device memory ran out on rank 0 in forward after 12 steps", "Tried to allocate 2.00 GiB",
                 "activations", "memory   perf_logs/demo/out_of_memory.txt",
                 "GPU memory at failure: 40.0 of 42.0 GiB reserved", "lightning-perf explain PD408"):  # fmt: skip
        assert part in text


def test_out_of_memory_of_another_rank_names_the_post_mortem_beside_the_folder_of_ranks() -> None:
    text = to_text(brief_report(out_of_memory(), "perf_logs/demo/perf_ranks/perf_session.rank1.json"), MAX_WIDTH)
    assert "memory   perf_logs/demo/out_of_memory.txt" in text


def test_out_of_memory_says_how_to_resume_when_the_checkpoint_has_a_long_path() -> None:
    session, path = out_of_memory(), f"/logs/{'x' * 90}/epoch=3.ckpt"
    oom = msgspec.structs.replace(session.memory.oom, checkpoint=path)
    text = text_of(msgspec.structs.replace(session, memory=msgspec.structs.replace(session.memory, oom=oom)))
    assert f"resume   trainer.fit(model, ckpt_path='{path}')\n" in text


def test_out_of_memory_keeps_urls_of_checkpoint_and_post_mortem() -> None:
    session = out_of_memory()
    oom = msgspec.structs.replace(session.memory.oom, checkpoint="s3://bucket/epoch=3.ckpt")
    session = msgspec.structs.replace(session, memory=msgspec.structs.replace(session.memory, oom=oom))
    for place in ("s3://bucket/run", "s3://bucket/run/perf_session.json"):
        text = to_text(brief_report(session, place), MAX_WIDTH)
        assert "resume   trainer.fit(model, ckpt_path='s3://bucket/epoch=3.ckpt')" in text
        assert "memory   s3://bucket/run/out_of_memory.txt" in text


def test_best_number_of_workers_is_shown_when_many_were_tried() -> None:
    session = SESSIONS["loader_probed"]()
    assert session.loader_probe is not None
    probe = msgspec.structs.replace(session.loader_probe, compute_s=0.003)
    run = msgspec.structs.replace(session.run, stage="data")
    machine = msgspec.structs.replace(session.machine, usable_cores=8.0)
    session = msgspec.structs.replace(session, steady=None, run=run, machine=machine, loader_probe=probe)
    rows = re.findall(r"^  (\d+) workers? .*?█(?:  (.+))?$", text_of(diagnose(session)), re.M)
    assert rows == [("0", "in use"), ("1", ""), ("8", "best")]


def test_rank_that_did_not_report_is_named() -> None:
    session = two_ranks()
    missing = (MissingRank(rank=1, reason="it did not report\nwithin 10 s"),)
    ranks = msgspec.structs.replace(session.ranks, missing=missing)
    assert "missing  rank 1: it did not report within 10 s" in text_of(msgspec.structs.replace(session, ranks=ranks))


def test_waits_of_a_slow_rank_are_noted_in_full() -> None:
    assert "of rank 0, with waits for others\n" in text_of(two_ranks())


def test_out_of_memory_states_what_each_fix_frees_and_names_it_as_code() -> None:
    text = text_of(out_of_memory())
    assert re.search(r"fix: 1 first; add the next if it fails again +frees \(est\.\) +effort", text)
    assert re.search(r"1 set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True +~8.80 GiB +one line", text)
    assert re.search(r"2 DataLoader\(batch_size=32\) and +~6.00 GiB +one line\n +Trainer\(accumulate_grad_", text)


def test_out_of_memory_states_no_size_when_none_was_measured() -> None:
    session = out_of_memory()
    memory = msgspec.structs.replace(session.memory, breakdown=None, devices=())
    text = text_of(diagnose(msgspec.structs.replace(session, memory=memory)))
    assert "DataLoader(batch_size=32)" in text
    assert "frees" not in text
    assert "about" not in text


@pytest.mark.parametrize(("dominant", "fix", "freed"), [
    ({"activations_bytes": 24 * GIB}, "use activation checkpointing", "12.0 GiB"),
    ({"activations_bytes": 24 * GIB}, 'Trainer(precision="bf16-mixed")', "12.0 GiB"),
    ({"optimizer_bytes": 24 * GIB}, 'Trainer(strategy="fsdp")', "18.0 GiB"),
])  # fmt: skip
def test_out_of_memory_frees_part_of_what_dominates(dominant: dict[str, int], fix: str, freed: str) -> None:
    session = out_of_memory()
    assert session.memory.breakdown is not None
    breakdown = msgspec.structs.replace(session.memory.breakdown, **dominant)
    memory = msgspec.structs.replace(session.memory, breakdown=breakdown)
    text = text_of(diagnose(msgspec.structs.replace(session, memory=memory)))
    assert re.search(rf"\d {re.escape(fix)} +~{freed}", text)
    assert len(text.splitlines()) <= MAX_LINES


def test_out_of_memory_says_how_to_resume_when_a_checkpoint_exists() -> None:
    session = out_of_memory()
    assert session.memory.oom is not None
    assert "resume   trainer.fit(model, ckpt_path='/logs/checkpoints/epoch=3.ckpt')" in text_of(session)
    oom = msgspec.structs.replace(session.memory.oom, checkpoint=None)
    memory = msgspec.structs.replace(session.memory, oom=oom)
    assert "resume" not in text_of(msgspec.structs.replace(session, memory=memory))


def test_out_of_memory_recommends_no_larger_batch_when_memory_seems_to_have_room() -> None:
    session = out_of_memory()
    assert session.memory.headroom is not None
    assert session.memory.headroom.largest_batch > 64
    text = text_of(session)
    assert "fits" not in text
    assert "567" not in text


def test_out_of_memory_is_brief_when_nothing_is_known() -> None:
    session = out_of_memory()
    memory = msgspec.structs.replace(
        session.memory, breakdown=Breakdown(device="cpu", parameters_bytes=0, buffers_bytes=0), headroom=None
    )
    assert "ran out of memory" in text_of(msgspec.structs.replace(session, memory=memory, findings=()))


def test_text_is_harmless_when_names_are_hostile() -> None:
    text = text_of(hostile())
    assert not CONTROL.search(text)
    assert "[bold]x[/bold]" in text


def test_columns_are_aligned_when_names_are_two_cells_wide() -> None:
    session = starved()
    first = session.findings[0]
    text = f"run {'数据' * 8} less often in every epoch"
    fix = msgspec.structs.replace(first.prescriptions[0], summary=text, code="", loader_args={})
    session = msgspec.structs.replace(session, findings=(msgspec.structs.replace(first, prescriptions=(fix,)),))
    head, row = (line for line in text_of(session).splitlines() if "effort" in line or line.startswith("1 PD101"))
    for name, value in (("est. speedup", "1.7–2.1x"), ("effort", fix.effort), ("diagnosis", "certain")):
        assert cell_len(row[: row.index(value)]) == head.index(name)


def test_output_has_no_escape_sequences_when_it_is_no_terminal() -> None:
    stream = io.StringIO()
    emit(brief_report(starved()), stream=stream)
    assert "\x1b" not in stream.getvalue()


def test_output_has_no_colors_when_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    shown = []
    for value in (None, "1"):
        if value is None:
            monkeypatch.delenv("NO_COLOR", raising=False)
        else:
            monkeypatch.setenv("NO_COLOR", value)
        stream = Terminal()
        emit(brief_report(starved()), stream=stream)
        shown.append(stream.getvalue())
    colors = re.compile("\x1b\\[[0-9;]*3[0-7]")
    assert colors.search(shown[0])
    assert not colors.search(shown[1])


# -- epochs ------------------------------------------------------------


def epochs(session: Session, wall_s: float = 60.0, step_p50_s: float = 0.03) -> Session:
    """Return the session with one epoch, the one with index 2."""
    epoch = msgspec.structs.replace(session.epochs[-1], index=2, wall_s=wall_s, step_p50_s=step_p50_s)
    return msgspec.structs.replace(session, epochs=(epoch,))


def test_epoch_has_three_lines_when_its_finding_is_new() -> None:
    report = brief_epoch(epochs(starved()), 2)
    assert report is not None
    lines = to_text(report).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("PerfDoctor  epoch 2 · 30.0 ms/step")
    assert lines[1].startswith("  PD101 54 % of the time waits for data")
    assert lines[2] == "  fix   num_workers=2 (now 0)"


def test_epoch_states_one_share_of_waiting_when_the_finding_is_about_it() -> None:
    session = starved()
    shares = {**session.epochs[-1].phases, "data_wait": 0.43 * 60}
    [epoch] = epochs(session).epochs
    report = brief_epoch(msgspec.structs.replace(session, epochs=(msgspec.structs.replace(epoch, phases=shares),)), 2)
    assert report is not None
    text = to_text(report)
    assert "54 %" in text
    assert "43 %" not in text


def test_epoch_shows_the_fix_again_when_its_value_has_changed() -> None:
    session = epochs(starved())
    [first, *others] = session.findings
    advice = msgspec.structs.replace(first.prescriptions[0], loader_args={"num_workers": 4})
    changed = msgspec.structs.replace(first, prescriptions=(advice,))
    report = brief_epoch(msgspec.structs.replace(session, findings=(changed, *others)), 2, session)
    assert report is not None
    assert to_text(report).splitlines()[2] == "  fix   num_workers=4 (now 0)"


def test_epoch_has_one_line_when_only_the_step_time_changed() -> None:
    report = brief_epoch(epochs(starved(), step_p50_s=0.036), 2, epochs(starved()))
    assert report is not None
    [line] = to_text(report).splitlines()
    assert "36.0 ms/step (+20 %)" in line
    assert line.endswith("PD101 as before")


@pytest.mark.parametrize("step_p50_s", [0.0275, 0.03, 0.0329])
def test_epoch_is_not_reported_when_nothing_changed(step_p50_s: float) -> None:
    assert brief_epoch(epochs(starved(), step_p50_s=step_p50_s), 2, epochs(starved())) is None


def test_news_keep_their_end_where_other_texts_are_cut() -> None:
    news = (
        "10 % slower than your last 5 runs, on top of 21 % by which all else in a step is slower: data wait +6.48 ms "
        "per step; since then num_workers 8 → 4, torch 2.9 → 2.10; other programs used 1.7 of 2 cores"
    )
    first, *more = to_text(brief_news(news)).splitlines()
    assert " ".join([first.removeprefix("PerfDoctor  "), *(line.strip() for line in more)]) == news
    assert len(more) == 3
    assert len(to_text(brief_news(10 * news)).splitlines()) == 4


def test_epoch_is_not_reported_when_it_was_short_or_not_recorded() -> None:
    assert brief_epoch(epochs(starved(), wall_s=29.0), 2) is None
    assert brief_epoch(epochs(starved()), 3) is None


def test_step_within_an_epoch_is_named_when_a_finding_is_new() -> None:
    report = brief_epoch(epochs(starved()), 2, is_within=True)
    assert report is not None
    [first, second, _] = to_text(report).splitlines()
    assert first.startswith(f"PerfDoctor  epoch 2 · step {starved().run.n_steps:,} · 30.0 ms/step")
    assert second.startswith("  PD101 ")


def test_nothing_is_reported_within_an_epoch_when_no_finding_is_new() -> None:
    assert brief_epoch(epochs(starved(), step_p50_s=0.036), 2, epochs(starved()), is_within=True) is None
    well = msgspec.structs.replace(healthy(), epochs=starved().epochs)
    assert brief_epoch(epochs(well), 2, is_within=True) is None


def test_run_that_has_not_ended_says_so() -> None:
    session = starved()
    running = msgspec.structs.replace(session, run=msgspec.structs.replace(session.run, status="running"))
    assert "not ended · " in to_text(brief_report(running))
    assert "not ended" not in to_text(brief_report(session))


def test_run_that_was_preempted_names_the_signal() -> None:
    session = starved()
    run = msgspec.structs.replace(session.run, status="interrupted", error="SIGTERMException")
    assert "interrupted (SIGTERM) · " in to_text(brief_report(msgspec.structs.replace(session, run=run)))


def test_epoch_is_reported_when_the_verdict_went_away() -> None:
    report = brief_epoch(epochs(msgspec.structs.replace(healthy(), epochs=starved().epochs)), 2, epochs(starved()))
    assert report is not None
    assert "Healthy" in to_text(report)


@pytest.mark.parametrize(("wall_s", "shown"), [(0.5, "(500 ms loader probe)"), (0.0, None)])
def test_time_of_the_loader_probe_is_stated_when_it_is_a_small_part_of_the_run(
    wall_s: float, shown: str | None
) -> None:
    probe = LoaderProbe(status="measured", wall_s=wall_s)
    base = starved()
    session = msgspec.structs.replace(base, loader_probe=probe, run=msgspec.structs.replace(base.run, wall_s=60.0))
    text = to_text(brief_report(session))
    assert shown in text if shown else "loader probe)" not in text


# -- before the first step ------------------------------------------------------------


def test_preflight_has_one_line_per_finding_and_counts_the_rest() -> None:
    finding = msgspec.structs.replace(LOGGING_EVERY_STEP, is_preflight=True, confidence="low")
    [line] = to_text(brief_preflight([finding], starved())).splitlines()
    assert line.startswith("PerfDoctor  likely logging-every-step: set log_every_n_steps=50 (now 1)")
    assert line.endswith("PD502")
    assert to_text(brief_preflight([finding] * 5, starved())).splitlines()[3] == "+2 more"


def test_path_is_relative_when_the_session_is_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "logs" / "perf_session.json") == str(Path("logs"))
    assert short_path(tmp_path / "logs" / "perf_session_test.json") == str(Path("logs", "perf_session_test.json"))
    assert short_path(tmp_path.parent / "perf_session.json") == str(tmp_path.parent)


def test_path_is_absolute_when_the_program_has_left_the_folder_of_its_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "outputs"
    inside.mkdir()
    (tmp_path / "link").symlink_to(inside)
    monkeypatch.chdir(inside)
    monkeypatch.setenv("PWD", str(tmp_path))
    assert short_path(inside / "logs" / "perf_session.json") == str(inside / "logs")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert short_path(inside / "logs" / "perf_session.json") == "logs"
    monkeypatch.setenv("PWD", str(tmp_path / "gone"))
    assert short_path(inside / "logs" / "perf_session.json") == str(inside / "logs")
