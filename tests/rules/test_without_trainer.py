"""Recommendations for a loop without a Trainer: no Trainer flags, and no trial, which could not apply them."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import Finding
from lightning_perf.rules.engine import diagnose, preflight

from .session_builder import build_session

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
        "PD601", {**LOOP, "shares": {"validation": 0.5}, "settings": {"trainer": {"max_epochs": None}}}
    )
    (fix,) = finding.prescriptions
    assert fix.summary.startswith("validate every 10 epochs: ")
    assert "if epoch % 10 == 0" in fix.code


def test_likely_finding_recommends_code_when_there_is_no_trainer() -> None:
    session = build_session({**LOOP, "settings": {"trainer": {"is_anomaly_detection_on": True}}})
    (finding,) = preflight(session, select=["PD503"])
    assert finding.prescriptions[0].code == "torch.autograd.set_detect_anomaly(False)"
    assert not finding.prescriptions[0].trainer_flags
