"""Recommendations for a loop without a Trainer: no Trainer flags, and no trial, which could not apply them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.records import Finding
from lightning_perf.rules.engine import diagnose, preflight
from tests.rules.case_files import load_cases

from .session_builder import build_session

CASES = Path(__file__).parent / "cases"
LOOP = {"run": {"has_trainer": False}}
ATTENTION = {"n": 12, "host_s": 0.01, "device_s": 0.12, "share": 0.5, "function": "eager_attention_forward"}


def finding_of(code: str, description: dict[str, Any]) -> Finding:
    return next(finding for finding in diagnose(build_session(description)).findings if finding.code == code)


def test_command_compares_sessions_when_no_trial_can_apply_the_treatment() -> None:
    with_trainer = finding_of("PD309", {"trace": {"attention": ATTENTION}})
    assert "lightning-perf trial --try fused-attention" in with_trainer.summary
    finding = finding_of("PD309", {**LOOP, "trace": {"attention": ATTENTION}})
    assert finding.summary.endswith(
        "lightning-perf compare BEFORE AFTER (sessions of a run without and with the change)."
    )
    assert not any(fix.treatment for fix in finding.prescriptions)


def test_validation_interval_is_recommended_as_code_when_there_is_no_trainer() -> None:
    finding = finding_of(
        "PD601",
        {
            **LOOP,
            "shares": {"validation": 0.5},
            "settings": {"trainer": {"max_epochs": None, "val_check_interval": None, "check_val_every_n_epoch": None}},
        },
    )
    (fix,) = finding.prescriptions
    assert fix.summary.startswith("validate every 10 epochs: ")
    assert "if epoch % 10 == 0" in fix.code
    assert "unknown" not in [evidence.value for evidence in finding.evidence]


def test_likely_finding_recommends_code_when_there_is_no_trainer() -> None:
    session = build_session({**LOOP, "settings": {"trainer": {"is_anomaly_detection_on": True}}})
    (finding,) = preflight(session, select=["PD503"])
    assert finding.prescriptions[0].code == "torch.autograd.set_detect_anomaly(False)"
    assert not finding.prescriptions[0].trainer_flags


@pytest.mark.parametrize(
    ("code", "case", "expected"),
    [
        ("PD301", "promises nothing when nothing was replayed", 'Fabric(..., precision="bf16-mixed")'),
        ("PD303", "fires when the device waits for launches", "# before training"),
        ("PD321", "is low on a device when nothing was replayed", "torch.use_deterministic_algorithms(False)"),
        ("PD203", "fires when images are float32", "batch = batch.float() / 255"),
        (
            "PD401",
            "states the batch that fits",
            "DataLoader(..., batch_size=32)\nif step % 2 == 0:\n    optimizer.step()",
        ),
        ("PD331", "fires and names the line", "sum([first_loss, second_loss]).backward()"),
        ("PD501", "names the line when the device is idle after a wait", "# .item() once, at the end of the epoch"),
        ("PD508", "fires with the generation and the objects alive", "gc.collect()  # before the first step"),
        ("PD509", "fires with the line that calls the metric", "if (step + 1) % 10 == 0:"),
        ("PD505", "fires at both thresholds", "if step % 300 == 0:\n    fabric.log_dict(metrics)"),
        ("PD602", "names the call when no callback saves", "if step % 200 == 0:\n    ...  # save"),
        (
            "PD706",
            "fires when memory is nearly full",
            "Fabric(..., strategy=DDPStrategy(..., gradient_as_bucket_view=True))",
        ),
        ("PD904", "fires above the threshold", ""),
        ("PD204", "fires when results are copied to the host in the step", "  # .cpu() once, at the end of the epoch"),
        ("PD308", "fires at the threshold", "(model.parameters(), ..., fused=True)"),
        (
            "PD323",
            "recommends to freeze all when one module has less than nearly all of them",
            "for parameter in model.parameters():",
        ),
        ("PD405", "lets Lightning reset a metric whose state grows", "self.train_ap.reset()  # after each epoch"),
    ],
)
def test_code_is_that_of_a_loop_when_there_is_no_trainer(code: str, case: str, expected: str) -> None:
    (session,) = (one["session"] for one in load_cases(CASES / f"{code}.yml") if one["name"] == case)
    finding = finding_of(code, {**session, "run": {**session.get("run", {}), "has_trainer": False}})
    assert [fix for fix in finding.prescriptions if expected in fix.code]
    texts = [finding.summary, *(text for fix in finding.prescriptions for text in (fix.summary, fix.code))]
    words = re.compile(r"rainer|log_every_n|\bon_[a-z_]+_(start|end)\b|configure_|self\.(log|parameters)\b|Lightning")
    assert not [text for text in texts if words.search(text)]


def test_logging_is_fabrics_when_there_is_no_trainer() -> None:
    logger = {"name": "CSV", "kind": "logger", "hook": "log_metrics", "phase": "logging", "total_s": 1, "n_calls": 1000}
    finding = finding_of(
        "PD502",
        {
            **LOOP,
            "shares": {"logging": 0.3},
            "settings": {"trainer": {"log_every_n_steps": None, "loggers": ["CSVLogger"]}},
            "steady": {"named": [{**logger, "share": 0.25}]},
        },
    )
    assert finding.prescriptions[0].summary == "call fabric.log_dict every 50 steps"
    assert "self" not in finding.prescriptions[0].code
    assert "log_every_n_steps" not in [evidence.metric for evidence in finding.evidence]


def test_reads_of_a_trainer_are_not_claimed_when_there_is_none() -> None:
    case = next(one for one in load_cases(CASES / "PD707.yml") if one["expect"] == "finding")["session"]
    session = build_session({**case, "run": {**case["run"], "has_trainer": False}})
    assert "PD707" not in [finding.code for finding in diagnose(session).findings]


@pytest.mark.parametrize(
    ("code", "case", "expected"),
    [
        (
            "PD320",
            "recommends clipping first when bf16 is slow",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        ),
        ("PD401", "states the batch that fits", "if step % 2 == 0:\n    optimizer.step()"),
        ("PD702", "fires when communication is exposed", "if step % 4 == 0:\n    optimizer.step()"),
    ],
)
def test_code_is_that_of_the_module_when_lightning_refuses_the_flag(code: str, case: str, expected: str) -> None:
    (session,) = (one["session"] for one in load_cases(CASES / f"{code}.yml") if one["name"] == case)
    settings = session.get("settings", {})
    trainer = {**settings.get("trainer", {}), "is_automatic_optimization": False}
    finding = finding_of(code, {**session, "settings": {**settings, "trainer": trainer}})
    assert [fix for fix in finding.prescriptions if expected in fix.code]
    for fix in finding.prescriptions:
        assert not {"accumulate_grad_batches", "gradient_clip_val"} & set(fix.trainer_flags)
        assert not fix.loader_args  # half the batch without accumulation would be another training
        assert "accumulate_grad_batches" not in fix.summary


@pytest.mark.parametrize(
    ("code", "case", "expected"),
    [
        (
            "PD401",
            "states the batch that fits",
            "DataLoader(..., batch_size=32)\nGradientAccumulationScheduler({0: 2})",
        ),
        ("PD702", "fires when communication is exposed", "GradientAccumulationScheduler({0: 4})"),
    ],
)
def test_code_is_that_of_the_callback_when_it_schedules_accumulation(code: str, case: str, expected: str) -> None:
    (session,) = (one["session"] for one in load_cases(CASES / f"{code}.yml") if one["name"] == case)
    settings = session.get("settings", {})
    trainer = {**settings.get("trainer", {}), "callbacks": ["GradientAccumulationScheduler"]}
    finding = finding_of(code, {**session, "settings": {**settings, "trainer": trainer}})
    assert [fix for fix in finding.prescriptions if expected in fix.code]
    for fix in finding.prescriptions:
        assert "accumulate_grad_batches" not in (*fix.trainer_flags, fix.summary, fix.code)
        assert fix.treatment != "accumulate"


def test_code_of_the_user_is_quoted_unchanged_when_there_is_no_trainer() -> None:
    line = {"file": "net.py", "line": 31, "function": "step", "entry": "step", "call": "torchmetrics.Metric.forward",
            "share": 0.9, "operator_fraction": 0.9, "n_samples": 200, "code": "self.total_accuracy(y, t)"}  # fmt: skip
    phase = {"n_samples": 250, "n_effective": 200.0, "share": 0.4, "operator_fraction": 0.0, "lines": [line]}
    profile = {"n_samples": 500, "sampled_s": 1.0, "first_step": 3, "last_step": 1990, "cost_s": 0.02,
               "phases": {"forward": phase}}  # fmt: skip
    finding = finding_of("PD509", {**LOOP, "host_profile": profile})
    assert "self.total_accuracy(y, t)" in finding.prescriptions[0].code
