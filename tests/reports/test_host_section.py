"""Sections on code lines of sampled steps, from synthetic records."""

from __future__ import annotations

import pytest

from lightning_perf.records import (
    AttentionCall,
    CompilerWatch,
    GraphBreak,
    LossScaler,
    Machine,
    ModelProfile,
    ModuleProfile,
    Recompile,
    Run,
    Session,
    SyncCall,
    SyncCalls,
    TensorLoop,
)
from lightning_perf.reports.cells import Value
from lightning_perf.reports.console import session_document, to_text
from lightning_perf.reports.html import to_page
from lightning_perf.reports.render.markdown import to_markdown
from lightning_perf.reports.sections import host
from lightning_perf.rules.engine import diagnose
from tests.rules.session_builder import build_session

CALLS = SyncCalls(
    n_steps=2,
    step_s=0.01,
    calls=(
        SyncCall(operator="item", file="/a/net.py", line=9, function="training_step", per_step=1, cost_s=2e-6),
        SyncCall(operator="item", file="", line=0, function="", per_step=0.5, owner="lightning"),
    ),
    loops=(TensorLoop(file="C:\\a\\net.py", line=12, function="forward", operator="select", repeats=64,
                      operators_per_step=200, cost_s=0.002, share=0.2),),
    attentions=(AttentionCall(file="/a/net.py", line=30, function="f", per_step=2, rows=64, columns=64),),
    unseen={"backward": "a thread of its own"},
)  # fmt: skip
WATCH = CompilerWatch(
    n_compiles=4,
    compile_s=12.0,
    n_compiled_steps=3,
    n_after_warmup=2,
    compile_after_warmup_s=5.0,
    n_functions=1,
    recompiles=(Recompile(function="net", file="/a/net.py", line=3, n=3, reason="size mismatch"),),
    graph_breaks=(GraphBreak(reason="print", file="/a/net.py", line=7, function="net"),),
)


def profile(*seconds: float) -> ModelProfile:
    modules = tuple(
        ModuleProfile(path=f"part{i}", class_name="Linear", n_parameters=1, forward_s=s / 2, backward_s=s / 2)
        for i, s in enumerate(seconds)
    )
    return ModelProfile(
        class_name="Net", device="cpu", n_parameters=1, n_trainable=1, parameters_bytes=4, modules=modules
    )


def session_with(**fields: object) -> Session:
    run = Run(
        id="synthetic", stage="fit", status="finished", started_at="2026-01-01T00:00:00Z", wall_s=60.0, n_steps=100
    )
    return Session(run=run, machine=Machine(os="Linux", python="3.11"), **fields)  # type: ignore[arg-type]


def test_rows_name_line_and_owner_when_steps_were_sampled():
    rows = host.sync_rows(CALLS)
    assert [row[0] for row in rows] == ["net.py:12", "net.py:9", "unknown", "net.py:30"]
    assert rows[0][1] == "loop over a tensor, 64 iterations"
    assert [row[-1] for row in rows] == ["your code", "your code", "Lightning", "your code"]
    assert Value("") in rows[2]  # what was not measured is not 0


def test_title_is_conditional_when_the_run_is_on_a_cpu():
    assert "would synchronize" in host.sync_title(CALLS)
    assert "would" not in host.sync_title(SyncCalls(n_steps=1, step_s=1.0, device="cuda"))


def test_both_reports_hold_what_was_seen_when_they_are_drawn():
    session = session_with(
        sync_calls=CALLS,
        compiler=WATCH,
        loss_scaler=LossScaler(scale=128.0, first_scale=65536.0, n_steps=50, skips=3, n_warmup_steps=50),
    )
    for text in (to_text(session_document(session), width=160), to_markdown(session)):
        for part in (
            "net.py:9",
            "net.py:12",
            "recompilation",
            "graph break",
            "size mismatch",
            "3 of 100 steps skipped",
        ):
            assert part in text


@pytest.mark.parametrize(
    ("seconds", "fact"),
    [
        ((0.4, 0.3, 0.3), "part0 takes 40 % of forward and backward"),
        ((0.39, 0.31, 0.3), ""),
        ((1.0,), ""),
        ((0.0, 0.0), ""),
        ((), ""),
    ],
)
def test_expensive_module_is_named_when_its_share_is_large(seconds, fact):
    assert host.heavy_module_fact(profile(*seconds)) == fact
    assert host.heavy_module_fact(None) == ""


def test_section_is_empty_when_nothing_was_sampled():
    session = session_with()
    assert "Host and compiler" not in to_markdown(session)


def lines_sampled() -> Session:
    """A callback that parses JSON, which a finding names, and a line of ``training_step`` that none does."""
    line = {"operator_fraction": 0.0, "n_samples": 200}
    phase = {"n_samples": 250, "n_effective": 200.0, "share": 0.4, "operator_fraction": 0.0}
    callback = {"file": "train.py", "line": 12, "function": "on_train_batch_end", "entry": "on_train_batch_end", **line}
    step = {"file": "model.py", "line": 81, "function": "training_step", "entry": "training_step", **line}
    description = {
        "shares": {"callbacks": 0.3},
        "steady": {"named": [{"name": "Sharpness", "kind": "callback", "hook": "on_train_batch_end",
                              "phase": "callbacks", "total_s": 6.0, "share": 0.25, "n_calls": 1000}]},
        "host_profile": {
            "n_samples": 500, "sampled_s": 1.0, "first_step": 3, "last_step": 1990, "cost_s": 0.02,
            "phases": {"callbacks": {**phase, "lines": [{**callback, "call": "json.loads", "share": 0.8}]},
                       "forward": {**phase, "lines": [{**step, "call": "", "share": 0.1}]}},
        },
    }  # fmt: skip
    return diagnose(build_session(description))


def test_line_rows_hold_the_costliest_lines_and_the_findings_that_name_them():
    rows = host.line_rows(lines_sampled())
    assert [(row[0], row[1], row[2], row[-1]) for row in rows] == [
        ("on_train_batch_end (train.py:12)", "json.loads", "callbacks", "PD504"),
        ("training_step (model.py:81)", "", "forward", "none"),
    ]


def test_reports_show_the_lines_when_the_stack_was_sampled():
    session = lines_sampled()
    for text in (to_text(session_document(session), 160), to_markdown(session), to_page(session)):
        assert "Where host time goes" in text
        assert "none" in text


def test_line_rows_are_empty_when_no_stack_was_sampled():
    assert host.line_rows(session_with()) == host.line_rows(build_session()) == []
