"""Treatments to try, chosen from a diagnosis."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.errors import ConfigError
from lightning_perf.records import Finding, Gain, Prescription, Session
from lightning_perf.trials.plan import applicable_specs, choose, environment_of
from tests.rules.session_builder import build_session


def finding(code: str, high: float, *treatments: str, **of_prescription: Any) -> Finding:
    return Finding(
        code=code,
        name=code.lower(),
        category="data",
        severity="high",
        summary="",
        evidence=(),
        gain=Gain(low=1.0, high=high, basis=""),
        prescriptions=tuple(
            Prescription(treatment=one, summary="", safety="exact", effort="one line", **of_prescription)
            for one in treatments
        ),
    )


def session_with(*findings: Finding) -> Session:
    return build_session({"findings": list(findings)})


def test_recommended_treatments_are_tried_with_the_best_first_and_their_values() -> None:
    session = session_with(
        finding("PD502", 1.2, "log-every-n", trainer_flags={"log_every_n_steps": 70}),
        finding("PD101", 3.0, "loader-workers", "", loader_args={"num_workers": 3}),
    )
    session = build_session({"findings": session.findings, "settings": {"trainer": {"log_every_n_steps": 1}}})
    choice = choose(session, (), semantics=False)
    assert [one.treatment for one in choice.candidates] == ["loader-workers=3", "log-every-n=70"]
    assert choice.candidates[0].predicted == session.findings[1].gain


def test_semantics_treatment_is_not_tried_unless_named() -> None:
    session = session_with(finding("PD601", 2.0, "val-less-often"))
    assert "--semantics" in choose(session, (), semantics=False).not_tried["val-less-often=2"]
    assert choose(session, (), semantics=True).candidates[0].safety == "semantics"
    assert choose(session, ("val-less-often=2",), semantics=False).candidates


def test_recommended_treatment_is_reported_when_it_does_not_exist_or_apply() -> None:
    session = session_with(finding("PD999", 2.0, "no-such-treatment", "anomaly-off"))
    not_tried = choose(session, (), semantics=False).not_tried
    assert "is not a treatment" in not_tried["no-such-treatment"]
    assert "already" in not_tried["anomaly-off"]


def test_named_treatment_is_tried_without_a_predicted_speedup() -> None:
    choice = choose(session_with(), ("anomaly-off", "log-every-n=9"), semantics=False)
    assert [one.treatment for one in choice.candidates] == ["anomaly-off", "log-every-n=9"]
    assert choice.candidates[0].predicted is None


def test_speedup_is_predicted_for_the_recommended_value_only() -> None:
    session = session_with(finding("PD502", 1.2, "log-every-n", trainer_flags={"log_every_n_steps": 70}))
    choice = choose(session, ("log-every-n=9", "log-every-n=70", "log-every-n"), semantics=False)
    assert [(one.treatment, one.predicted) for one in choice.candidates] == [
        ("log-every-n=9", None), ("log-every-n=70", session.findings[0].gain),
    ]  # fmt: skip


def test_treatments_with_effect_between_epochs_are_named() -> None:
    assert choose(session_with(), ("async-checkpoint", "anomaly-off"), semantics=False).on_loop == {"async-checkpoint"}


def test_treatment_arguments_are_checked_as_typed() -> None:
    assert applicable_specs(" loader-workers=4, precision-bf16,") == ("loader-workers=4", "precision-bf16")
    with pytest.raises(ConfigError, match="named 2 times"):
        applicable_specs("log-every-n=5,log-every-n=9")


def test_environment_has_variables_needed_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:False")
    assert environment_of(("threads=3", "expandable-segments", "compile")) == {
        "OMP_NUM_THREADS": "3",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True",
    }
    assert environment_of(("loader-workers=4",)) == {}


@pytest.mark.parametrize("with_both", [False, True])
def test_segments_are_set_where_newer_torch_reads_them_first(monkeypatch: pytest.MonkeyPatch, with_both: bool) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:native,expandable_segments:False")
    expected = {"PYTORCH_ALLOC_CONF": "backend:native,expandable_segments:True"}
    if with_both:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
        expected["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64,expandable_segments:True"
    assert environment_of(("expandable-segments",)) == expected
