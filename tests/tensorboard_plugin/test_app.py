from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from reports.sessions import SESSIONS, ddp, earlier_runs, hostile, starved
from reports.test_model_section import profile
from reports.test_rank_section import ranks_of
from reports.trials import climbed
from traces.shared import FOLDER, needs_shared_traces

from benchmarks.comparison.simulated_sessions import simulated
from lightning_perf.records import Distribution, LoaderSettings, ModelSettings, Session, Window
from lightning_perf.reports.figures import FIGURES, SHOWN_AS_TABLES
from lightning_perf.tensorboard_plugin import catalogue, perfetto
from lightning_perf.tensorboard_plugin.catalogue import Catalogue, roots_of
from lightning_perf.tensorboard_plugin.timeline import MAX_EVENTS, lanes_of
from lightning_perf.tensorboard_plugin.views import VIEWS
from lightning_perf.traces import analyze, read

from .conftest import Tab, parts, table

Open = Callable[..., Tab]

SAVED = sorted(set(SESSIONS) - {"hostile"})  # which has figures that files may not have


def save(session: Session, folder: Path) -> Path:
    return session.save(folder / "perf_session.json")


def save_anyway(session: Session, folder: Path) -> None:
    """Save a session without the checks of ``Session.save``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "perf_session.json").write_bytes(session.to_json())


def trace_file(path: Path, n_operators: int = 3) -> Path:
    events: list[dict[str, Any]] = []
    for step in range(2):
        start = 1_000_000 * step
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                       "ts": start, "dur": 900_000})  # fmt: skip
        events += [{"ph": "X", "cat": "cpu_op", "name": f"aten::op{i}", "pid": 1, "tid": 1,
                    "ts": start + 100_000 * (i + 1), "dur": 50_000} for i in range(n_operators)]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# -- what can be chosen ------------------------------------------------------------


def test_runs_lists_sessions_and_traces_without_one_newest_first(tab: Open, tmp_path: Path) -> None:
    first = save(starved(), tmp_path / "exp" / "version_0")
    second = trace_file(tmp_path / "plain" / "host.1.pt.trace.json.gz")
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    reply = tab().json("runs")
    assert [run["id"] for run in reply["runs"]] == ["plain/traces", "exp/version_0/perf_session.json"]
    assert [run["label"] for run in reply["runs"]] == ["plain (traces)", "exp/version_0"]
    assert reply["is_complete"]
    assert not reply["is_cut"]
    assert [name for name, _ in reply["views"]] == list(VIEWS)


def test_runs_separates_sessions_of_one_folder(tab: Open, tmp_path: Path) -> None:
    save(starved(), tmp_path)
    other = msgspec.structs.replace(starved(), run=msgspec.structs.replace(starved().run, id="0123456789ab"))
    save(other, tmp_path)  # sets the first aside, under the id of its run
    validated = msgspec.structs.replace(starved(), run=msgspec.structs.replace(starved().run, id="v", stage="validate"))
    validated.save(tmp_path / "perf_session_validate.json")
    labels = {run["label"].removeprefix(tmp_path.name) for run in tab().json("runs")["runs"]}
    assert labels == {"", f" (fit {starved().run.id[:8]})", " (validate)"}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_runs_lists_a_folder_when_its_name_is_not_utf8(tab: Open, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    save(starved(), folder)
    trace_file(folder / "w.1.pt.trace.json")
    one = tab()
    assert set(one.runs()) == {"caf?/perf_session.json", "caf?/traces"}
    assert analyze(folder / "w.1.pt.trace.json").source == "w.1.pt.trace.json"


def test_runs_leaves_out_traces_of_a_session(tab: Open, tmp_path: Path) -> None:
    trace = analyze(trace_file(tmp_path / "w.1.pt.trace.json"))
    window = Window(first_step=3, n_steps=2, status="recorded", reason="", cost_s=0.1, file="w.1.pt.trace.json",
                    trace=trace)  # fmt: skip
    save(msgspec.structs.replace(starved(), windows=(window,)), tmp_path)
    assert [run.rpartition("/")[2] for run in tab().runs()] == ["perf_session.json"]


def test_runs_finds_what_other_ranks_left_when_the_first_died(tab: Open, tmp_path: Path) -> None:
    session = msgspec.structs.replace(ddp(), run=msgspec.structs.replace(ddp().run, rank=1))
    session.save(tmp_path / "perf_ranks" / "perf_session.rank1.json")
    one = tab()
    [run] = one.runs()
    assert one.blocks("overview", run)[0]["type"] == "verdict"


def test_a_run_added_meanwhile_is_listed(tab: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalogue, "_PAUSE_FACTOR", 0)
    one = tab()
    assert one.runs() == []
    save(starved(), tmp_path / "late")
    assert one.until(one.runs) == ["late/perf_session.json"]


def test_stamp_changes_with_the_session(tab: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalogue, "_PAUSE_FACTOR", 0)
    path = save(starved(), tmp_path)
    one = tab()
    [before] = one.json("runs")["runs"]
    shown = one.blocks("overview", before["id"])
    changed = msgspec.structs.replace(
        starved(), verdict=msgspec.structs.replace(starved().verdict, text="something else")
    )
    save(changed, tmp_path)
    os.utime(path, (3, 3))
    one.until(lambda: one.json("runs")["runs"][0]["stamp"] != before["stamp"])
    assert one.blocks("overview", before["id"])[0]["text"].startswith("something else")
    assert shown[0]["text"] != "something else"


def test_log_directory_is_cut_with_a_note_when_it_is_too_large(
    tab: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_MAX_FOLDERS", 3)
    for i in range(6):
        save(starved(), tmp_path / f"run{i}")
    reply = tab().json("runs")
    assert reply["is_cut"]
    assert len(reply["runs"]) == 2


def test_roots_are_those_of_logdir_and_logdir_spec_on_this_machine() -> None:
    assert roots_of("/a") == [("", "/a")]
    assert roots_of(None, "x:/a,/b,gs://c/d") == [("x", "/a"), ("/b", "/b")]
    assert roots_of("gs://bucket/runs") == []
    assert roots_of(None, None) == []


def test_runs_of_unnamed_folders_are_all_listed(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        save(starved(), tmp_path / folder / "version_0")
    found = Catalogue(roots_of(None, f"{tmp_path / 'a'},{tmp_path / 'b'}")).entries(timeout_s=5.0)
    assert {entry.label for entry in found.values()} == {f"{tmp_path / folder}/version_0" for folder in ("a", "b")}


def test_is_active_when_the_log_directory_has_sessions_or_traces(tab: Open, tmp_path: Path) -> None:
    assert not tab().plugin.is_active()
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    assert not tab().plugin.is_active()
    trace_file(tmp_path / "a" / "b" / "host.1.pt.trace.json.gz")
    assert tab().plugin.is_active()


def test_search_of_the_disk_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    monkeypatch.setattr(catalogue.os, "walk", lambda root: searched.append(root) or iter(()))
    one = Catalogue([("", str(tmp_path))])
    for _ in range(5):
        one.entries(timeout_s=5.0)
    assert len(searched) == 1


# -- views ------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", SAVED)
def test_each_view_of_each_session_is_drawn_whole(tab: Open, tmp_path: Path, name: str, view: str) -> None:
    save(SESSIONS[name](), tmp_path)
    one = tab()
    [run] = one.runs()
    blocks = one.blocks(view, run)
    assert blocks
    assert not [block for block in blocks if block.get("kind") == "problem"]


@pytest.mark.parametrize("name", SAVED)
def test_each_figure_is_given_or_absent(tab: Open, tmp_path: Path, name: str) -> None:
    save(SESSIONS[name](), tmp_path)
    one = tab()
    [run] = one.runs()
    for figure in FIGURES:
        reply = one.json("figure", run=run, name=figure, theme="dark")
        assert reply["state"] == "ready", reply
        assert reply["figure"] is None or set(reply["figure"]) >= {"data", "layout"}


def everything() -> Session:
    """Return a session with ranks, arithmetic, a probed loader, earlier runs and a trial."""
    loaded = SESSIONS["loader_probed"]()
    return msgspec.structs.replace(
        loaded,
        ranks=ranks_of(4),
        model_profile=profile(),
        trials=(climbed(),),
        memory=SESSIONS["memory_sampled"]().memory,
        earlier=earlier_runs(),
        run=msgspec.structs.replace(loaded.run, world_size=4),
    )


def test_every_figure_has_its_place_in_a_view(tab: Open, tmp_path: Path) -> None:
    save(everything(), tmp_path / "session")
    trace_file(tmp_path / "plain" / "host.1.pt.trace.json")
    one = tab()
    placed = {
        block["name"]
        for run in one.runs()
        for view in VIEWS
        for block in one.blocks(view, run)
        if block["type"] == "figure"
    }
    assert placed - {"trace_events"} == set(FIGURES) - {*SHOWN_AS_TABLES, "memory_before_oom"}


def test_overview_shows_the_figures_of_the_session(tab: Open, tmp_path: Path) -> None:
    session = starved()
    save(session, tmp_path)
    one = tab()
    [run] = one.runs()
    blocks = one.blocks("overview", run)
    assert session.steady is not None
    phases = table(blocks, "phases")
    shares = {name.replace("_", " "): phase.share for name, phase in session.steady.phases.items()}
    shown = dict(zip(phases["phase"], phases["share"], strict=True))
    assert {name: shown[name] for name in shares if name in shown} == {n: s for n, s in shares.items() if s >= 0.005}
    found = [block for block in blocks if block["type"] == "finding"]
    assert [block["code"] for block in found] == [finding.code for finding in session.findings]
    first = session.findings[0]
    assert [value for _, (_, value), _ in found[0]["evidence"]] == [fact.value for fact in first.evidence]
    assert "\n".join(found[0]["fixes"][0]["code"]) == first.prescriptions[0].code


def test_other_views_show_the_figures_of_the_session(tab: Open, tmp_path: Path) -> None:
    session = everything()
    save(session, tmp_path)
    one = tab()
    [run] = one.runs()
    assert session.ranks is not None
    assert session.model_profile is not None
    ranks = table(one.blocks("ranks", run), "ranks")
    assert ranks["own work"] == [summary.own_s for summary in session.ranks.summaries]
    devices = table(one.blocks("memory", run), "devices")
    assert devices["peak allocated"] == [device.peak_allocated_bytes for device in session.memory.devices]
    modules = table(one.blocks("modules", run), "modules")
    assert modules["forward"] == [module.forward_s for module in session.model_profile.modules]
    counted = table(one.blocks("operators", run), "counted-operators")
    assert counted["FLOPs"] == [operator.flops for operator in session.model_profile.operators]
    ladder = table(one.blocks("trials", run), "ladder")
    assert ladder["ladder"][0] == "baseline"
    assert len(ladder["ladder"]) > 1
    functions = table(one.blocks("data", run), "functions")
    assert session.loader_probe is not None
    assert functions["function"] == [function.name for function in session.loader_probe.functions]


def test_overview_starts_with_verdict_time_and_fixes_and_folds_the_rest(tab: Open, tmp_path: Path) -> None:
    save(everything(), tmp_path)
    one = tab()
    [run] = one.runs()
    sections = one.ready("view", view="overview", run=run)["sections"]
    keys = [section["key"] for section in sections]
    assert keys[:4] == ["overview", "time", "fixes", "findings"]
    assert [section["is_short"] for section in sections] == [key in keys[:4] for key in keys]
    assert sections[0]["parts"][0]["type"] == "verdict"
    assert "fixes" in [part["key"] for part in sections[2]["parts"]]


def test_phase_bars_start_at_zero_with_the_share_as_length(tab: Open, tmp_path: Path) -> None:
    save(starved(), tmp_path)
    one = tab()
    [run] = one.runs()
    [phases] = [part for part in one.blocks("overview", run) if part.get("key") == "phases"]
    assert phases["bars"] == pytest.approx([row[1][1] for row in phases["rows"]], abs=1e-3)


def test_rules_are_listed_with_their_names(tab: Open, tmp_path: Path) -> None:
    save(starved(), tmp_path)
    one = tab()
    [run] = one.runs()
    assert "PD105 bursty-fetch" in table(one.blocks("overview", run), "rules")["rule"]


def test_view_without_content_names_the_argument_that_fills_it(tab: Open, tmp_path: Path) -> None:
    save(starved(), tmp_path)
    one = tab()
    [run] = one.runs()
    empty = one.ready("view", view="overview", run=run)["empty"]
    assert {"operators", "kernels", "modules", "ranks", "trials", "trace"} <= set(empty)
    assert "overview" not in empty
    for view in ("operators", "trace"):
        assert "schedule=" in empty[view]
        hint, code = one.blocks(view, run)
        assert hint["text"].startswith("No profiler window was recorded.")
        assert "schedule=" in code["lines"][0]


def test_operators_of_a_sampled_step_are_shown_without_a_note_that_there_are_none(tab: Open, tmp_path: Path) -> None:
    save(msgspec.structs.replace(starved(), model_profile=profile()), tmp_path)
    one = tab()
    [run] = one.runs()
    blocks = one.blocks("operators", run)
    assert table(blocks, "counted-operators")
    assert not [block for block in blocks if block["type"] == "note"]


def of_model(session: Session, n_trainable: int = 10) -> Session:
    loader = LoaderSettings(stage="train", index=0, class_name="DataLoader", is_plain=True, dataset_class="Images")
    settings = msgspec.structs.replace(
        session.settings, model=ModelSettings(class_name="Net", n_trainable=n_trainable), loaders=(loader,)
    )
    return msgspec.structs.replace(session, settings=settings)


def test_trial_of_a_training_is_shown_with_its_runs(tab: Open, tmp_path: Path) -> None:
    trial = msgspec.structs.replace(of_model(starved()), trials=(climbed(),))
    save(of_model(starved()), tmp_path / "run")
    save(of_model(starved(), n_trainable=11), tmp_path / "another")
    save(trial, tmp_path / "tried")
    one = tab()
    assert {run["label"] for run in one.json("runs")["runs"]} == {"run", "another", "tried (trial)"}
    run = "run/perf_session.json"
    assert table(one.blocks("trials", run), "ladder")["ladder"][0] == "baseline"
    assert one.blocks("trials", run)[0]["text"] == "Measured in tried (trial)."
    assert "trials" not in one.ready("view", view="overview", run=run)["empty"]
    assert "trials" in one.ready("view", view="overview", run="another/perf_session.json")["empty"]


def test_fixes_show_the_speedup_that_a_trial_measured(tab: Open, tmp_path: Path) -> None:
    first = starved().findings[0]
    fix = msgspec.structs.replace(first.prescriptions[0], treatment="loader-workers")
    tried = msgspec.structs.replace(
        starved(), findings=(msgspec.structs.replace(first, prescriptions=(fix,)),), trials=(climbed(),)
    )
    save(tried, tmp_path)
    one = tab()
    [run] = one.runs()
    [fixes] = [part for part in one.blocks("overview", run) if part.get("key") == "fixes"]
    assert fixes["rows"][0][3][0].startswith("1.83x measured")


def test_runs_say_when_they_started_whenever_their_files_were_written(tab: Open, tmp_path: Path) -> None:
    def started(at: str) -> Session:
        return msgspec.structs.replace(starved(), run=msgspec.structs.replace(starved().run, started_at=at))

    os.utime(save(started("2026-01-02T00:00:00Z"), tmp_path / "new"), (1, 1))
    os.utime(save(started("2026-01-01T00:00:00"), tmp_path / "old"), (9, 9))
    times = {run["label"]: run["time"] for run in tab().json("runs")["runs"]}
    assert times["new"] - times["old"] == 24 * 3600


def test_a_chosen_window_is_the_one_that_is_shown(tab: Open, tmp_path: Path) -> None:
    def window(first_step: int, n_operators: int) -> Window:
        trace = analyze(trace_file(tmp_path / f"{first_step}.json", n_operators))
        return Window(first_step=first_step, n_steps=2, status="recorded", reason="", cost_s=0.1, trace=trace)

    save(msgspec.structs.replace(simulated(1), windows=(window(10, 2), window(50, 3))), tmp_path)
    one = tab()
    [run] = one.runs()
    latest = one.ready("view", view="operators", run=run)
    assert latest["traces"] == ["steps 10 to 11", "steps 50 to 51"]
    assert latest["trace"] == 1
    assert len(table(parts(latest), "operators")["operator"]) == 3
    assert len(table(one.blocks("operators", run, trace=0), "operators")["operator"]) == 2
    figures = [one.json("figure", run=run, name="operators", trace=i)["figure"] for i in (0, 1)]
    assert [len(figure["data"][0]["y"]) for figure in figures] == [2, 3]
    timeline = one.json("figure", run=run, name="timeline", trace=0)["figure"]
    assert [shape["x0"] for shape in timeline["layout"]["shapes"]] == [10, 50]
    assert one.json("view", 404, view="operators", run=run, trace=2)


@pytest.mark.parametrize(
    "named",
    [
        "../secret.pt.trace.json",
        "/etc/passwd",
        "inner/../../secret.pt.trace.json",
        "notes.txt",
        "gone.pt.trace.json",
        "x" * 300 + ".pt.trace.json",
    ],
)
def test_a_session_cannot_name_a_file_that_is_no_trace_of_its_own(tab: Open, tmp_path: Path, named: str) -> None:
    trace_file(tmp_path / "secret.pt.trace.json")
    trace = analyze(trace_file(tmp_path / "run" / "own.pt.trace.json"))
    (tmp_path / "run" / "notes.txt").write_text("mine")
    window = Window(first_step=0, n_steps=2, status="recorded", reason="", cost_s=0.0, file="own.pt.trace.json",
                    trace=trace)  # fmt: skip
    session = msgspec.structs.replace(starved(), windows=(window, msgspec.structs.replace(window, file=named)))
    save(session, tmp_path / "run")
    one = tab()
    assert one.get("trace", run="run/perf_session.json", trace=0).status_code == 200
    assert one.get("trace", run="run/perf_session.json", trace=1).status_code == 404


def test_view_goes_on_after_a_part_that_cannot_be_drawn(
    tab: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(session: Session) -> list[str]:
        raise ZeroDivisionError("planted")

    save(starved(), tmp_path)
    one = tab()
    [run] = one.runs()
    monkeypatch.setattr("lightning_perf.tensorboard_plugin.views.run_facts", fails)
    blocks = one.blocks("overview", run)
    assert blocks[0]["type"] == "verdict"
    assert blocks[-1]["kind"] == "problem"
    assert "planted" in blocks[-1]["text"]


# -- diff ------------------------------------------------------------


def test_diff_compares_two_sessions(tab: Open, tmp_path: Path) -> None:
    base = starved()
    assert base.steady is not None
    step_s = base.steady.step_s
    slower = Distribution(**{name: 2 * getattr(step_s, name) for name in ("p50", "p95", "p99", "mean", "std")})
    new = msgspec.structs.replace(
        base,
        run=msgspec.structs.replace(base.run, id="another"),
        steady=msgspec.structs.replace(base.steady, step_s=slower, span_s=2 * base.steady.span_s),
        findings=(),
    )
    save(base, tmp_path / "base")
    save(new, tmp_path / "new")
    one = tab()
    runs = {"base": "base/perf_session.json", "new": "new/perf_session.json"}
    blocks = parts(one.ready("diff", **runs))
    assert blocks[0]["type"] == "verdict"
    assert {"times", "finding-changes"} <= {block.get("key") for block in blocks}


def test_diff_of_two_traces_matches_operators(tab: Open, tmp_path: Path) -> None:
    trace_file(tmp_path / "a" / "h.1.pt.trace.json", 2)
    trace_file(tmp_path / "b" / "h.1.pt.trace.json", 3)
    blocks = parts(tab().ready("diff", base="a/traces", new="b/traces"))
    columns = table(blocks, "host-changes")
    assert dict(zip(columns["operator"], zip(columns["base"], columns["new"], strict=True), strict=True)) == {
        "aten::op0": (0.05, 0.05), "aten::op1": (0.05, 0.05), "aten::op2": (None, 0.05)
    }  # fmt: skip
    texts = [block["items"] for block in blocks if block["type"] == "facts"]
    assert texts == [["base: a (traces), h.1.pt.trace.json", "new: b (traces), h.1.pt.trace.json"]]


def test_diff_has_a_note_when_both_runs_are_the_same(tab: Open, tmp_path: Path) -> None:
    save(starved(), tmp_path)
    one = tab()
    [run] = one.runs()
    blocks = parts(one.ready("diff", base=run, new=run))
    assert blocks[0]["kind"] == "problem"


# -- traces without a session ------------------------------------------------------------


def test_a_trace_is_read_in_the_background(tab: Open, tmp_path: Path) -> None:
    trace_file(tmp_path / "host.1.pt.trace.json.gz")
    one = tab()
    [run] = one.runs()
    assert one.json("view", view="overview", run=run)["state"] in ("reading", "ready")
    columns = table(one.blocks("operators", run), "operators")
    assert sorted(columns["operator"]) == ["aten::op0", "aten::op1", "aten::op2"]
    assert columns["host self"] == [0.1, 0.1, 0.1]


def test_unreadable_trace_is_reported_and_the_others_are_shown(tab: Open, tmp_path: Path) -> None:
    trace_file(tmp_path / "a" / "host.1.pt.trace.json")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "host.1.pt.trace.json.gz").write_bytes(b"no gzip at all")
    one = tab()
    one.until(lambda: one.json("view", view="overview", run="b/traces")["state"] != "reading")
    reply = one.json("view", view="overview", run="b/traces")
    assert reply["state"] == "failed"
    assert "host.1.pt.trace.json.gz" in reply["error"]
    assert one.blocks("overview", "a/traces")


def test_other_traces_can_be_chosen_when_the_latest_is_unreadable(tab: Open, tmp_path: Path) -> None:
    for i in (1, 2):
        trace_file(tmp_path / f"host.{i}.pt.trace.json")
    (tmp_path / "host.3.pt.trace.json").write_bytes(b'{"traceEvents": [{"ph"')
    one = tab()
    [run] = one.runs()
    one.until(lambda: one.json("view", view="overview", run=run)["state"] != "reading")
    reply = one.json("view", view="overview", run=run)
    assert (reply["state"], reply["trace"]) == ("failed", 2)
    assert reply["traces"] == [f"host.{i}.pt.trace.json" for i in (1, 2, 3)]
    assert one.blocks("overview", run, trace=1)
    ranks = one.blocks("ranks", run)
    assert len(table(ranks, "traces")["trace"]) == 2
    [problem] = [part["text"] for part in ranks if part.get("kind") == "problem"]
    assert "host.3.pt.trace.json" in problem


def test_a_changed_trace_is_read_again(tab: Open, tmp_path: Path) -> None:
    path = trace_file(tmp_path / "host.1.pt.trace.json", 1)
    one = tab()
    [run] = one.runs()
    assert len(table(one.blocks("operators", run), "operators")["operator"]) == 1
    trace_file(path, 4)
    os.utime(path, (9, 9))
    assert len(table(one.blocks("operators", run), "operators")["operator"]) == 4


def test_traces_of_one_folder_are_listed_together(tab: Open, tmp_path: Path) -> None:
    for i in (1, 2):
        trace_file(tmp_path / f"host.{i}.pt.trace.json", i)
    one = tab()
    [run] = one.runs()
    assert one.ready("view", view="overview", run=run)["traces"] == ["host.1.pt.trace.json", "host.2.pt.trace.json"]
    assert table(one.blocks("ranks", run), "traces")["trace"] == ["host.1.pt.trace.json", "host.2.pt.trace.json"]


@needs_shared_traces
@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz")))
def test_views_of_a_real_trace_match_the_reader(tab: Open, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.1.pt.trace.json.gz"
    shutil.copyfile(FOLDER / f"{name}.json.gz", path)
    record = analyze(path)
    one = tab()
    [run] = one.runs()
    windows = record.steps or ((record.whole,) if record.whole else ())
    categories = table(one.blocks("overview", run), "categories")
    for category, mean_s in zip(categories["category"], categories["mean"], strict=True):
        spent = [window.categories[category.replace(" ", "_")] for window in windows]
        assert mean_s == pytest.approx(sum(spent) / len(spent))
    operators = one.blocks("operators", run)
    if record.operators:
        assert table(operators, "operators")["host self"] == [each.host_self_s for each in record.operators]
    if record.kernels is not None and record.kernels.top:
        assert table(one.blocks("kernels", run), "kernels")["time"] == [each.total_s for each in record.kernels.top]
    if record.copies is not None:
        columns = table(one.blocks("memory", run), "copies")
        assert columns["time"][0] == record.copies.h2d_s
        assert columns["n"][0] == record.copies.h2d_n


# -- what is wrong with a request or a file ------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "status", "parameters"),
    [
        ("view", 400, {}),
        ("view", 400, {"view": "overview"}),
        ("view", 404, {"view": "nothing", "run": "x"}),
        ("view", 404, {"view": "overview", "run": "no such run"}),
        ("view", 404, {"view": "overview", "run": "../../../../etc/passwd"}),
        ("view", 404, {"view": "overview", "run": "x" * 100_000}),
        ("view", 404, {"view": "<script>alert(1)</script>", "run": "x"}),
        ("view", 400, {"view": "overview", "run": "RUN", "trace": "one"}),
        ("view", 400, {"view": "overview", "run": "RUN", "trace": "-1"}),
        ("view", 400, {"view": "overview", "run": "RUN", "trace": "9" * 5_000}),
        ("view", 404, {"view": "overview", "run": "RUN", "trace": "7"}),
        ("diff", 400, {"base": "RUN"}),
        ("diff", 404, {"base": "RUN", "new": "none"}),
        ("figure", 400, {"run": "RUN"}),
        ("figure", 404, {"run": "RUN", "name": "__import__"}),
        ("figure", 400, {"run": "RUN", "name": "breakdown", "theme": "pink"}),
        ("trace", 400, {}),
        ("trace", 404, {"run": "RUN"}),
        ("nothing", 404, {}),
        ("", 404, {}),
        ("static/", 404, {}),
        ("static/plugin.py", 404, {}),
        ("static/../plugin.py", 404, {}),
        ("static/%2e%2e/plugin.py", 404, {}),
        ("static/..%2f..%2fplugin.py", 404, {}),
        ("static/....//plugin.py", 404, {}),
        ("static//etc/passwd", 404, {}),
        ("perfetto/../plugin.py", 404, {}),
        ("perfetto/..%5c..%5cplugin.py", 404, {}),
        ("perfetto/%00", 404, {}),
        ("perfetto//etc/passwd", 404, {}),
        ("perfetto/" + "x" * 300, 404, {}),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(
    tab: Open, tmp_path: Path, route: str, status: int, parameters: dict[str, str]
) -> None:
    save(starved(), tmp_path)
    one = tab()
    [run] = one.runs()
    asked = {name: run if value == "RUN" else value for name, value in parameters.items()}
    assert len(one.json(route, status, **asked)["error"]) < 400


def test_only_get_is_answered(tab: Open) -> None:
    one = tab()
    for method in ("post", "put", "delete", "patch"):
        assert getattr(one.client, method)("/data/plugin/perfdoctor/runs").status_code == 405
    assert one.client.head("/data/plugin/perfdoctor/runs").status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"schema_version": 99, "run": {"id": "x"}}',
        b'{"schema_version": 1, "run": {"id": 3}}',
        b"[" * 100_000,
        b'{"run": {"id": "x"}, "more": ' + b"[" * 100_000,
    ],
)
def test_other_runs_are_shown_when_a_session_is_corrupt(tab: Open, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "perf_session.json").write_bytes(content)
    save(starved(), tmp_path / "good")
    one = tab()
    assert set(one.runs()) == {"bad/perf_session.json", "good/perf_session.json"}
    reply = one.json("view", view="overview", run="bad/perf_session.json")
    assert reply["state"] == "failed"
    assert reply["error"]
    assert one.blocks("overview", "good/perf_session.json")


def test_a_session_of_a_newer_version_is_listed_as_unreadable(tab: Open, tmp_path: Path) -> None:
    path = save(starved(), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 999}))
    [run] = tab().json("runs")["runs"]
    assert run["error"] == "written by a newer lightning-perf"


def test_responses_are_json_when_a_file_has_an_infinite_number(tab: Open, tmp_path: Path) -> None:
    bad = starved()
    assert bad.steady is not None
    text = bad.to_json().decode().replace('"samples_per_s": 1043.2', '"samples_per_s": 1e999')
    (tmp_path / "perf_session.json").write_text(text)
    one = tab()
    [run] = one.runs()
    for view in VIEWS:
        one.json("view", view=view, run=run)
    for figure in FIGURES:
        one.json("figure", run=run, name=figure)


def test_hostile_names_come_as_short_lines_of_text(tab: Open, tmp_path: Path) -> None:
    session = hostile()
    finite = msgspec.structs.replace(
        session.findings[0], gain=None, evidence=(session.findings[0].evidence[0], session.findings[0].evidence[2])
    )
    folder = tmp_path / "<script>alert(1)</script>"
    save_anyway(msgspec.structs.replace(session, findings=(finite,)), folder)
    one = tab()
    [run] = one.runs()
    for view in VIEWS:
        response = one.get("view", view=view, run=run)
        assert response.status_code == 200
        assert len(response.get_data()) < 200_000

        def check(value: Any) -> None:
            if isinstance(value, str):
                assert not [c for c in value if (c < " " and c not in "\n\t") or c in "\u202e\x7f\x1b"], value[:80]
                assert len(value) < 20_000
            elif isinstance(value, dict):
                for each in value.values():
                    check(each)
            elif isinstance(value, list):
                for each in value:
                    check(each)

        check(response.json)
    for figure in FIGURES:
        reply = one.json("figure", run=run, name=figure)
        assert "<script>" not in json.dumps(reply)


def test_long_names_of_operators_are_cut(tab: Open, tmp_path: Path) -> None:
    trace = analyze(trace_file(tmp_path / "x.json"))
    long = msgspec.structs.replace(trace.operators[0], name="<script>" + "n" * 100_000 + "\x1b[31m")
    window = Window(first_step=0, n_steps=2, status="recorded", reason="", cost_s=0.0,
                    trace=msgspec.structs.replace(trace, operators=(long, *trace.operators)))  # fmt: skip
    save(msgspec.structs.replace(starved(), windows=(window,)), tmp_path)
    one = tab()
    [run] = one.runs()
    names = table(one.blocks("operators", run), "operators")["operator"]
    assert names[0].startswith("<script>nnn")
    assert len(names[0]) <= 1_000


# -- files of the page ------------------------------------------------------------


def test_the_page_is_served_with_its_types(tab: Open) -> None:
    from lightning_perf.tensorboard_plugin.app import STATIC

    one = tab()
    assert one.get("index.js").content_type.startswith("text/javascript")
    for name, kind in STATIC.items():
        response = one.get(f"static/{name}")
        assert response.status_code == 200
        assert response.content_type.startswith(kind)
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    present = {path.name for path in Path(catalogue.__file__).parent.joinpath("static").iterdir()}
    assert present == set(STATIC)


def test_plotly_comes_from_the_installed_wheel_and_is_kept_by_the_browser(tab: Open) -> None:
    response = tab().get("static/plotly.min.js")
    assert response.content_type.startswith("text/javascript")
    assert "max-age" in response.headers["Cache-Control"]
    assert b"plotly.js" in response.get_data()[:300]


def test_the_page_makes_no_markup_of_text_and_names_no_other_machine() -> None:
    for path in Path(catalogue.__file__).parent.joinpath("static").iterdir():
        text = path.read_text(encoding="utf-8")
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http://",
            "https://",
        ):
            assert forbidden not in text, (path.name, forbidden)


def test_perfetto_is_served_where_it_is_installed_without_its_service_worker(
    tab: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "web_dist"
    inside.mkdir()
    page = b"<p>perfetto</p><script src='a.js'></script><script type='text/javascript'>start()</script>"
    (inside / "index.html").write_bytes(page)
    (inside / "service_worker.js").write_text("")
    (tmp_path / "secret.txt").write_text("secret")
    (inside / "link.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(perfetto, "folder", lambda: inside)
    one = tab()
    response = one.get("perfetto/index.html")
    assert response.get_data() == page
    policy = response.headers["Content-Security-Policy"]
    own = base64.b64encode(hashlib.sha256(b"start()").digest()).decode()
    assert policy.startswith("default-src 'self'; script-src 'self' 'unsafe-eval' 'sha256-")
    assert f"'sha256-{own}';" in policy
    assert "//" not in policy
    for name in ("service_worker.js", "../secret.txt", "%2e%2e/secret.txt", "link.txt", "", "."):
        assert one.get(f"perfetto/{name}").status_code == 404, name


def test_without_perfetto_the_longest_events_of_a_trace_are_drawn(
    tab: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "folder", lambda: None)
    trace_file(tmp_path / "host.1.pt.trace.json.gz")
    one = tab()
    [run] = one.runs()
    blocks = one.blocks("trace", run)
    assert not [block for block in blocks if block["type"] == "perfetto"]
    assert "trace_events" in [block["name"] for block in blocks if block["type"] == "figure"]
    drawn = one.ready("figure", run=run, name="trace_events")["figure"]
    shown = {bar["name"]: bar for bar in drawn["data"]}
    assert shown["steps and phases"]["x"] == [0.9, 0.9]
    assert shown["steps and phases"]["base"] == [0.0, 1.0]
    assert shown["operators"]["x"] == [0.05] * 6
    assert set(shown["operators"]["y"]) == {shown["steps and phases"]["y"][0] + 1}  # below the step that contains them


def test_timeline_keeps_the_longest_events_of_each_lane(tmp_path: Path) -> None:
    [lane] = lanes_of(read(trace_file(tmp_path / "x.json", 600)))
    assert len(lane.events) == MAX_EVENTS
    assert lane.n_left_out == 2 * 601 - MAX_EVENTS
    assert sum(event.name.startswith("ProfilerStep") for event in lane.events) == 2


def test_lanes_are_named_by_device_and_stream_if_these_are_known(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "mm", "pid": 0, "tid": 7, "dur": 5}
    known = {**kernel, "ts": 0, "args": {"device": 1, "stream": 7}}
    (tmp_path / "x.json").write_text(json.dumps({"traceEvents": [known, {**kernel, "ts": 10, "args": {"device": 0}}]}))
    titles = {lane.title for lane in lanes_of(read(tmp_path / "x.json"))}
    assert titles == {"device 1, stream 7", "device 0, stream unknown"}


def test_perfetto_gets_the_trace_unchanged(tab: Open, tmp_path: Path) -> None:
    path = trace_file(tmp_path / "host.1.pt.trace.json.gz")
    one = tab()
    [run] = one.runs()
    one.blocks("trace", run)
    assert one.get("trace", run=run).get_data() == path.read_bytes()


# -- sessions in event files ------------------------------------------------------------


class Provider:
    """TensorBoard's data provider for one run with one summary, and more if ``others`` names their tags."""

    def __init__(
        self, content: bytes, tag: str = "perfdoctor/the-id", run: str = "exp/version_0", others: tuple[str, ...] = ()
    ) -> None:
        self.content, self.tag, self.run, self.tags = content, tag, run, (tag, *others)

    def list_tensors(self, ctx: Any, *, experiment_id: str, plugin_name: str) -> Any:
        assert plugin_name == "perfdoctor"
        return {self.run: {tag: SimpleNamespace(max_wall_time=12.5, max_step=3) for tag in self.tags}}

    def read_tensors(self, ctx: Any, *, run_tag_filter: Any, **rest: Any) -> Any:
        assert (run_tag_filter.runs, run_tag_filter.tags) == ({self.run}, {self.tag})
        return {self.run: {self.tag: [SimpleNamespace(numpy=np.array(self.content, dtype=object))]}}


def test_a_session_of_an_event_file_is_shown(tab: Open) -> None:
    one = tab(provider=Provider(starved().to_json()))
    assert one.runs() == ["exp/version_0/summary/perfdoctor/the-id"]
    assert one.blocks("overview", one.runs()[0])[0]["type"] == "verdict"


def test_sessions_of_one_event_file_have_different_labels(tab: Open) -> None:
    one = tab(provider=Provider(starved().to_json(), others=("perfdoctor/other",)))
    labels = {run["label"] for run in one.json("runs")["runs"]}
    assert labels == {"exp/version_0 (event file, the-id)", "exp/version_0 (event file, other)"}


def test_session_on_disk_replaces_its_summary(tab: Open, tmp_path: Path) -> None:
    save(starved(), tmp_path / "exp")
    one = tab(provider=Provider(starved().to_json(), f"perfdoctor/{starved().run.id}"))
    assert one.runs() == ["exp/perf_session.json"]


def test_invalid_summary_is_reported(tab: Open) -> None:
    one = tab(provider=Provider(b"{"))
    reply = one.json("view", view="overview", run=one.runs()[0])
    assert reply["state"] == "failed"


def test_sessions_on_disk_are_shown_when_the_provider_fails(tab: Open, tmp_path: Path) -> None:
    class Failing:
        def list_tensors(self, *arguments: Any, **named: Any) -> Any:
            raise RuntimeError("planted")

    save(starved(), tmp_path)
    assert len(tab(provider=Failing()).runs()) == 1


def test_view_shows_no_heading_without_content_when_only_peaks_are_known(tab: Open, tmp_path: Path) -> None:
    save(starved(), tmp_path)
    one = tab()
    [run] = one.runs()
    assert [section["key"] for section in one.ready("view", view="memory", run=run)["sections"]] == ["memory"]
