"""Figures against the records that they are drawn from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from lightning_perf.records import (
    Block,
    Breakdown,
    Ceilings,
    Epoch,
    Idle,
    Kernels,
    KernelTime,
    ModelProfile,
    ModuleProfile,
    OperatorProfile,
    OperatorTime,
    OutOfMemory,
    RankSummary,
    Session,
    TraceRecord,
    TraceStep,
    Window,
)
from lightning_perf.records.ranks import combine_ranks
from lightning_perf.reports import figures
from lightning_perf.reports.cells import Value
from lightning_perf.reports.document import Figure, Table
from lightning_perf.reports.figures import FIGURES, SHOWN_AS_TABLES, figure_json, template, why_absent
from lightning_perf.reports.figures.parts import bytes_scale, label, seconds_scale
from lightning_perf.reports.sections.memory import memory_rows
from lightning_perf.reports.session_document import session_document
from reports import trials as made_trials
from reports.sessions import (
    SESSIONS,
    earlier_runs,
    hostile,
    loader_probed,
    memory_sampled,
    starved,
    too_short,
    twelve_findings,
)

BAD = "<script>alert(1)</script> & $x$ %{y} <b>b</b>\x00\x1b[31m\u202e"


def drawn(name: str, session: Session, theme: str = "light") -> dict[str, Any]:
    figure = FIGURES[name].draw(session, theme=theme)
    assert figure is not None
    return figure_json(figure)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)


def profiled(name: str = "encoder", with_times: bool = True) -> Session:
    timed = {"forward_s": 0.002, "backward_s": 0.004} if with_times else {}
    modules = (
        ModuleProfile(path=name, class_name="Linear", n_parameters=100, forward_flops=10**9, backward_flops=2 * 10**9,
                      forward_bytes=10**7, backward_bytes=2 * 10**7, bound="compute", advice="bf16", **timed),
        ModuleProfile(path="", class_name="", n_parameters=0, forward_flops=0, backward_flops=0, forward_bytes=100,
                      backward_bytes=100, **timed),
    )  # fmt: skip
    operators = (
        OperatorProfile(
            name="aten::addmm", dtype="float32", calls=2, flops=3 * 10**9, n_bytes=3 * 10**7, total_s=0.005
        ),
        OperatorProfile(name="aten::relu", dtype="float32", calls=2, flops=0, n_bytes=10**6, total_s=0.001),
    )
    ceilings = Ceilings(
        device="cuda", name="GPU", torch="2.13", matmul_flops_per_s={"fp32": 1e12, "bf16": 8e12}, copy_bytes_per_s=1e11
    )
    profile = ModelProfile(
        class_name="Net", device="cuda:0", n_parameters=100, n_trainable=100, parameters_bytes=400, precision="fp32",
        forward_flops=10**9, backward_flops=2 * 10**9, modules=modules, operators=operators, ceilings=ceilings,
    )  # fmt: skip
    return msgspec.structs.replace(starved(), model_profile=profile)


def traced(name: str = "aten::mm") -> Session:
    steps = tuple(
        TraceStep(
            name=f"ProfilerStep#{i}", duration_s=0.1, device_busy_s=0.06, busy_fraction=0.6,
            categories={"kernel": 0.05, "memcpy": 0.01, "data_loading": 0.04, "other": 0.0},
        )
        for i in range(3)
    )  # fmt: skip
    kernels = Kernels(
        median_s=1e-4, tensor_core_fraction=0.5,
        top=(KernelTime(name=name, kind="matmul", total_s=0.09, n=30, share=0.6),
             KernelTime(name="elementwise_kernel", kind="elementwise", total_s=0.06, n=60, share=0.4)),
    )  # fmt: skip
    operators = (
        OperatorTime(name="aten::add_", calls=9, host_total_s=0.01, host_self_s=0.01, device_total_s=0.06,
                     device_self_s=0.06),
        OperatorTime(name=name, calls=30, host_total_s=0.03, host_self_s=0.02, device_total_s=0.09, device_self_s=0.09),
    )  # fmt: skip
    record = TraceRecord(
        source="live", rank=0, world_size=1, device_name="GPU", n_events=100, n_kernels=90, steps=steps,
        idle=Idle(host_wait_s=0.1, kernel_wait_s=0.01, other_s=0.0), communication=None, copies=None, syncs=None,
        kernels=kernels, operators=operators, span_s=0.3,
    )  # fmt: skip
    window = Window(first_step=30, n_steps=3, status="recorded", reason="PD303", cost_s=0.5, trace=record)
    return msgspec.structs.replace(starved(), windows=(window,))


def with_ranks(n: int, slow: int = 3) -> Session:
    summaries = tuple(
        RankSummary(
            rank=rank, node=f"node{rank // 8}", n_steps=100, step_s=0.08, own_s=0.07 if rank == slow else 0.05,
            waiting_s=0.01 if rank == slow else 0.03, waiting_n=90,
            parts_s={"data": 0.025 if rank == slow else 0.005, "compute": 0.04, "host": 0.005},
        )
        for rank in range(n)
        if rank != 5
    )  # fmt: skip
    return msgspec.structs.replace(starved(), ranks=combine_ranks(summaries, n))


def with_timeline(n: int = 40) -> Session:
    blocks = tuple(
        Block(
            first_step=10 * i,
            n_steps=10,
            start_s=0.3 * i,
            step_s=0.03,
            max_step_s=0.05,
            phases={"data_wait": 0.02, "forward": 0.0099, "logging": 0.0001},
        )
        for i in range(n)
    )
    steady = starved().steady
    assert steady is not None
    return msgspec.structs.replace(starved(), steady=msgspec.structs.replace(steady, timeline=blocks))


def out_of_memory() -> Session:
    oom = OutOfMemory(where="device", error="OutOfMemoryError", step=20, timeline=((0, 2**30), (10, 2**31)))
    return msgspec.structs.replace(
        starved(), memory=msgspec.structs.replace(starved().memory, oom=oom), run=starved().run
    )


def tried() -> Session:
    return msgspec.structs.replace(starved(), trials=(made_trials.climbed(),))


FULL: dict[str, Session] = {
    "breakdown": starved(),
    "findings": starved(),
    "epochs": starved(),
    "timeline": with_timeline(),
    "earlier_runs": msgspec.structs.replace(starved(), earlier=earlier_runs()),
    "startup": starved(),
    "trace_steps": traced(),
    "operators": traced(),
    "kernels": traced(),
    "memory_peak": memory_sampled(),
    "memory_phases": memory_sampled(),
    "memory_modules": memory_sampled(),
    "memory_growth": memory_sampled(),
    "memory_before_oom": out_of_memory(),
    "modules": profiled(),
    "roofline": profiled(),
    "ranks": with_ranks(8),
    "loader_curve": loader_probed(),
    "trials": tried(),
}
"""For each figure a session that holds something for it."""


# -- any figure ----------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_pure_json_with_units_on_its_axes(name: str, theme: str) -> None:
    document = drawn(name, FULL[name], theme)
    json.dumps(document, allow_nan=False)
    assert document["layout"]["template"] == template(theme)  # type: ignore[arg-type]
    titles = [axis["title"]["text"] for key, axis in document["layout"].items() if "axis" in key and "title" in axis]
    assert titles, "an axis says what it shows"
    assert FIGURES[name].title


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_none_with_a_reason_when_the_session_holds_nothing_for_it(name: str) -> None:
    empty = msgspec.structs.replace(too_short(), run=msgspec.structs.replace(too_short().run, startup={}), missing={})
    assert FIGURES[name].draw(empty) is None
    assert name in SHOWN_AS_TABLES or why_absent(name, empty)


def test_reason_is_the_sessions_own_when_it_gives_one() -> None:
    assert why_absent("timeline", too_short()) == "3 steps, fewer than the 10 of warm-up"


@pytest.mark.parametrize("make", SESSIONS.values(), ids=SESSIONS)
def test_figures_are_drawn_from_any_session(make: Any) -> None:
    session = make()
    for name, each in FIGURES.items():
        figure = each.draw(session)
        assert figure is not None or name in SHOWN_AS_TABLES or why_absent(name, session)


def test_foreign_text_is_never_markup() -> None:
    sessions = [
        hostile(),
        traced(BAD),
        profiled(BAD),
        msgspec.structs.replace(
            starved(), findings=tuple(msgspec.structs.replace(f, name=BAD, code=BAD) for f in starved().findings)
        ),
    ]
    for session in sessions:
        for name, each in FIGURES.items():
            figure = each.draw(session)
            for text in texts(figure_json(figure)) if figure is not None else ():
                plain = text.replace("<br>", "").replace("<extra></extra>", "")
                assert "<" not in plain, (name, text)
                assert not any(sign in text for sign in "\x00\x1b\u202e"), (name, text)


def test_foreign_text_is_never_in_a_template_where_its_characters_are_syntax() -> None:
    for session in (traced(BAD), profiled(BAD)):
        for each in FIGURES.values():
            figure = each.draw(session)
            for trace in figure_json(figure)["data"] if figure is not None else ():
                assert "alert" not in trace.get("hovertemplate", "")
                assert "alert" not in trace.get("texttemplate", "")


def test_huge_names_are_cut() -> None:
    for session in (traced("n" * 100_000), profiled("n" * 100_000)):
        for each in FIGURES.values():
            figure = each.draw(session)
            assert figure is None or len(json.dumps(figure_json(figure))) < 20_000


def test_what_is_not_a_finite_number_becomes_none() -> None:
    session = starved()
    epoch = msgspec.structs.replace(session.epochs[0], phases={"forward": float("nan"), "backward": 1.0})
    document = drawn("epochs", msgspec.structs.replace(session, epochs=(epoch,)))
    values = [value for trace in document["data"] for value in trace["y"]]
    assert 1.0 in values
    assert None in values
    json.dumps(document, allow_nan=False)


def test_drawing_loads_neither_torch_nor_plotly_until_it_is_asked_to() -> None:
    code = (
        "import sys; from lightning_perf.reports import figures; assert 'plotly' not in sys.modules; "
        "assert not {'torch', 'lightning', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_label_survives_plotly_unchanged() -> None:
    assert label("a<b>&$") == "a&lt;b&gt;&amp;&#36;"
    assert label("x" * 100, 10) == "x" * 9 + "…"


def test_scale_fits_the_largest_value() -> None:
    assert seconds_scale([0.5, None, 2.0]) == ("s", 1.0)
    assert seconds_scale([0.5]) == ("ms", 1e3)
    assert seconds_scale([2e-5, float("nan")]) == ("µs", 1e6)
    assert bytes_scale([3 * 1024**2]) == ("MiB", 1 / 1024**2)
    assert bytes_scale([]) == ("B", 1)


# -- each figure against its record ----------------------------------------------


def parts_of(session: Session) -> list[Any]:
    return [part for each in session_document(session).sections for part in each.parts]


def table(session: Session, key: str) -> Table:
    [found] = [part for part in parts_of(session) if isinstance(part, Table) and part.key == key]
    return found


@pytest.mark.parametrize("name", sorted(set(SHOWN_AS_TABLES) - {"findings"}))
def test_bar_chart_has_the_rows_of_a_table_with_bars(name: str) -> None:
    [bars] = drawn(name, FULL[name])["data"]
    tables = [part for part in parts_of(FULL[name]) if isinstance(part, Table) and part.bars]
    shown = [part for part in tables if list(part.bars) == bars["x"]]
    assert shown
    assert 0 < max(bars["x"]) <= 1
    by = shown[0].heads.index(shown[0].bar_head)
    assert bars["text"] == [row[by].text for row in shown[0].rows if isinstance(row[by], Value)]


def test_every_figure_is_placed_in_the_document_or_shown_as_a_table() -> None:
    placed = {part.name for session in FULL.values() for part in parts_of(session) if isinstance(part, Figure)}
    assert placed == set(FIGURES) - set(SHOWN_AS_TABLES)


def test_phase_bars_are_shares_of_the_span() -> None:
    phases = table(starved(), "phases")
    assert phases.bars[0] == pytest.approx(0.541)
    assert sum(phases.bars) == pytest.approx(1, abs=0.002)


def test_operator_bars_show_the_time_of_each() -> None:
    assert table(traced(), "operators").bars == pytest.approx([0.5, 1])
    assert table(profiled(), "counted-operators").bars == pytest.approx([1, 0.2])


def test_module_bars_show_arithmetic_when_times_are_missing() -> None:
    assert table(profiled(), "modules").bar_head == "time"
    assert table(profiled(with_times=False), "modules").bar_head == "FLOPs"


def test_memory_tables_have_every_part_with_its_basis() -> None:
    held = table(memory_sampled(), "holds")
    assert {str(row[0]): str(row[3]) for row in held.rows}["optimizer states"] != ""
    assert held.bars[0] == 1
    growth = table(memory_sampled(), "growth")
    assert [row[3] for row in growth.rows] == ["yes", "no"]
    phases = table(memory_sampled(), "memory-phases")
    assert "cuda:0" in phases.title
    allocated = [row[1].value for row in phases.rows if isinstance(row[1], Value)]
    assert allocated == pytest.approx([28.4 * 2**30, 20.4 * 2**30, 16.4 * 2**30])


def test_memory_shares_are_of_the_shown_parts_when_a_file_has_a_negative_rest() -> None:
    for rest in (-100, -90):
        rows = memory_rows(Breakdown(device="cpu", parameters_bytes=100, rest_bytes=rest))
        assert [(row.name, row.share) for row in rows] == [("parameters", 1.0)]


def test_loader_table_marks_the_best_workers_and_those_in_use() -> None:
    curve = table(loader_probed(), "curve")
    marks = " ".join(str(row[-1]) for row in curve.rows)
    assert "in use" in marks
    assert "best" in marks
    assert max(curve.bars) == 1


def test_epochs_add_up_to_their_wall_time_with_small_phases_folded() -> None:
    document = drawn("epochs", starved())
    heights = [sum(values) for values in zip(*(trace["y"] for trace in document["data"]), strict=True)]
    assert heights == pytest.approx([4.4] * 3)
    assert document["data"][-1]["name"] == "other and smaller"
    assert document["data"][0]["name"] == "data wait"


def test_many_epochs_become_means_of_neighbors() -> None:
    epochs = tuple(Epoch(index=i, n_steps=1, wall_s=2.0, phases={"forward": 1.0 + i % 2}) for i in range(1000))
    [bars] = drawn("epochs", msgspec.structs.replace(starved(), epochs=epochs))["data"]
    assert len(bars["y"]) == figures.steps.MAX_EPOCH_BARS
    assert bars["customdata"][0][0] == "epochs 0–4, mean"
    assert bars["y"][0] == pytest.approx(1.4)
    assert bars["x"][0] == 2


def test_timeline_stacks_phases_and_shows_windows() -> None:
    window = Window(first_step=30, n_steps=3, status="recorded", reason="", cost_s=0.1)
    failed = msgspec.structs.replace(window, status="failed")
    document = drawn("timeline", msgspec.structs.replace(with_timeline(), windows=(window, failed)))
    stacked = [trace for trace in document["data"] if trace.get("stackgroup")]
    assert [trace["name"] for trace in stacked] == ["data wait", "forward", "other and smaller"]
    assert sum(trace["y"][0] for trace in stacked) == pytest.approx(30)  # ms
    assert stacked[0]["x"][-1] == 400
    [shape] = document["layout"]["shapes"]
    assert (shape["x0"], shape["x1"]) == (30, 33)


def test_findings_show_their_interval_and_code() -> None:
    [bars] = drawn("findings", starved())["data"]
    assert bars["customdata"][0][0] == "PD101 starved-by-loader"
    assert bars["base"][0] == 1.7
    assert bars["base"][0] + bars["x"][0] == pytest.approx(2.1)
    assert bars["text"][0] == "1.7–2.1x"
    assert bars["customdata"][0][3] == "54 % of the steady time"


def test_findings_without_a_gain_are_left_out() -> None:
    [bars] = drawn("findings", twelve_findings())["data"]
    assert len(bars["y"]) == sum(one.gain is not None for one in twelve_findings().findings)


def test_gain_without_an_end_does_not_flatten_the_others() -> None:
    finding = starved().findings[0]
    wide = msgspec.structs.replace(finding, gain=msgspec.structs.replace(finding.gain, high=1e9))
    document = drawn("findings", msgspec.structs.replace(starved(), findings=(wide, *starved().findings[1:])))
    assert document["layout"]["xaxis"]["range"][1] < 200


def test_trials_show_measured_and_predicted() -> None:
    trial = made_trials.climbed()
    document = drawn("trials", tried())
    kept = next(trace for trace in document["data"] if trace["name"] == "measured, kept")
    speedups = [rung.speedup.value for rung in trial.ladder if rung.added and rung.is_kept and rung.speedup]
    assert kept["x"] == speedups
    predicted = next(trace for trace in document["data"] if trace["name"].startswith("predicted"))
    assert predicted["base"][0] == pytest.approx(1.7)


def test_trace_figures_show_the_last_window() -> None:
    steps = drawn("trace_steps", traced())["data"]
    assert sum(trace["y"][0] for trace in steps) == pytest.approx(100)  # ms
    assert [trace["name"] for trace in steps] == ["kernel", "memcpy", "data loading"]


def test_roofline_points_match_counts_and_times() -> None:
    document = drawn("roofline", profiled())
    modules = next(trace for trace in document["data"] if trace["name"] == "modules")
    assert modules["x"] == [pytest.approx(100)]
    assert modules["y"] == [pytest.approx(5e11)]
    roof = next(trace for trace in document["data"] if trace["name"].startswith("ceiling in fp32"))
    assert roof["x"][1] == pytest.approx(10)  # the ridge: 1e12 / 1e11
    assert roof["y"][0] == pytest.approx(roof["x"][0] * 1e11)
    assert roof["x"][0] < roof["x"][1], "the slope is seen"
    assert roof["y"][2] == 1e12
    for axis, values in (("xaxis", [*modules["x"], *roof["x"]]), ("yaxis", [*modules["y"], *roof["y"]])):
        low, high = document["layout"][axis]["range"]
        assert all(10**low <= value <= 10**high for value in values)


def test_roofline_has_a_note_when_ceilings_are_missing() -> None:
    session = profiled()
    bare = msgspec.structs.replace(session, model_profile=msgspec.structs.replace(session.model_profile, ceilings=None))
    [note] = drawn("roofline", bare)["layout"]["annotations"]
    assert "not measured" in note["text"]


@pytest.mark.parametrize("n", [2, 8, 64])
def test_few_ranks_are_shown_side_by_side_with_their_parts(n: int) -> None:
    session = with_ranks(n, slow=1)
    assert session.ranks is not None
    [cells] = drawn("ranks", session)["data"]
    assert len(cells["z"]) == 5
    assert len(cells["z"][0]) == len(session.ranks.summaries)
    if n > 2:
        assert cells["z"][0][1] == pytest.approx(20)  # ms above the median
        assert cells["z"][4][1] == pytest.approx(-20)
    assert bool(cells.get("text")) is (n <= 12)


def test_a_thousand_ranks_become_a_grid_that_highlights_the_slow_one() -> None:
    [cells] = drawn("ranks", with_ranks(1024, slow=341))["data"]
    assert [len(cells["z"]), len(cells["z"][0])] == [32, 32]
    flat = [value for row in cells["z"] for value in row]
    assert max(value for value in flat if value is not None) == flat[341] == pytest.approx(20)
    assert flat[5] is None
    assert cells["customdata"][0][5] == "rank 5 did not report"
    assert "rank 341: own work 70.0 ms" in cells["customdata"][10][21]


def test_grid_is_drawn_when_a_file_has_a_rank_twice() -> None:
    found = with_ranks(1024).ranks
    assert found is not None
    twice = msgspec.structs.replace(found, summaries=(*found.summaries, found.summaries[0]))
    assert drawn("ranks", msgspec.structs.replace(starved(), ranks=twice))["data"]


def test_noise_between_ranks_is_not_blown_up() -> None:
    session = with_ranks(4, slow=99)
    [cells] = drawn("ranks", session)["data"]
    assert cells["zmax"] == pytest.approx(4)  # ms: a twentieth of the step


def test_huge_world_stays_small() -> None:
    document = drawn("ranks", with_ranks(16_384, slow=7))
    assert len(json.dumps(document)) < 1_000_000


# -- figures that no run could have -------------------------------------------------


@pytest.mark.parametrize("number", [0.0, -1.0, 5e-324, 1e308])
def test_figures_survive_numbers_that_no_run_could_have(number: float) -> None:
    for name, session in FULL.items():
        document = {**_with_floats(msgspec.to_builtins(session), number), "run": msgspec.to_builtins(session.run)}
        for zeroed in (document, _with_ints(document)):
            odd = msgspec.convert(zeroed, Session)
            figure = FIGURES[name].draw(odd)
            if figure is not None:
                json.dumps(figure_json(figure), allow_nan=False)


def _with_floats(value: Any, number: float) -> Any:
    if isinstance(value, dict):
        return {key: _with_floats(one, number) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_floats(one, number) for one in value]
    return number if isinstance(value, float) else value


def _with_ints(value: Any) -> Any:
    """All whole numbers but those that say how the record is laid out become 0."""
    if isinstance(value, dict):
        kept = ("schema_version", "rank", "index", "first_step")
        return {key: one if key in kept else _with_ints(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_ints(one) for one in value]
    return 0 if type(value) is int else value


def test_earlier_runs_of_one_day_have_different_labels() -> None:
    runs = tuple(
        msgspec.structs.replace(each, started_at=f"2026-01-02T0{i}:00:00Z")
        for i, each in enumerate(earlier_runs().runs)
    )
    session = msgspec.structs.replace(starved(), earlier=msgspec.structs.replace(earlier_runs(), runs=runs))
    figure = FIGURES["earlier_runs"].draw(session, "light")
    assert figure is not None
    assert list(figure.layout.xaxis.ticktext[:2]) == ["01-02 00:00", "01-02 01:00"]
