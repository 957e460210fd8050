"""Recommended values change between the diagnoses of a run only if the evidence changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lightning_perf.records import AppliedTreatment, Finding, Gain, Prescription, Session, Verdict
from lightning_perf.rules.findings import fix
from lightning_perf.rules.stability import with_stable_advice
from rules.session_builder import build_session


def finding(n_workers: int, low: float = 1.0, high: float = 2.0, **changes: Any) -> Finding:
    """Return a finding that recommends a number of workers."""
    advice = fix(f"set num_workers={n_workers}", "one line", loader_args={"num_workers": n_workers})
    gain = Gain(low=low, high=high, basis="", method=changes.pop("method", "modeled"))
    more = changes.pop("more", ())
    return Finding(
        code="PD101", name="starved-by-loader", category="data", severity="high", summary="Waiting.", evidence=(),
        prescriptions=(advice, *more), gain=gain, **changes,
    )  # fmt: skip


def diagnosed(found: Finding, **changes: Any) -> Session:
    """Return a session with a finding."""
    verdict = Verdict(category="data", code="PD101", text=f"Waiting: {found.prescriptions[0].summary}")
    return msgspec.structs.replace(build_session(), findings=(found,), verdict=verdict, **changes)


def workers(session: Session) -> int:
    """Return the recommended number of workers."""
    return session.findings[0].prescriptions[0].loader_args["num_workers"]


def test_value_stays_when_the_intervals_of_both_speedups_overlap() -> None:
    session = diagnosed(finding(1))
    for n_workers, high in ((2, 1.9), (1, 2.2), (2, 2.1)):
        session = with_stable_advice(diagnosed(finding(n_workers, high=high)), session)
        assert workers(session) == 1
        assert session.verdict.text.startswith("Waiting: set num_workers=1")


def test_speedup_stays_when_the_recommended_value_stays() -> None:
    session = with_stable_advice(diagnosed(finding(2, high=1.9)), diagnosed(finding(1)))
    assert session.findings[0].gain == finding(1).gain


def test_speedup_is_the_newest_if_the_same_is_recommended() -> None:
    now, before = diagnosed(finding(1, 1.2, 1.9)), diagnosed(finding(1, 1.0, 1.6))
    assert with_stable_advice(now, before) == now


CHEAPER = fix("make samples cheaper", "hours")


@pytest.mark.parametrize("new", [finding(2, 2.5, 3.0), finding(2, method="probed")], ids=["apart", "measured"])
def test_value_changes_when_the_evidence_has_changed(new: Finding) -> None:
    assert workers(with_stable_advice(diagnosed(new), diagnosed(finding(1)))) == 2


def test_value_changes_when_settings_or_treatments_have_changed() -> None:
    before, now = diagnosed(finding(1)), diagnosed(finding(2))
    trainer = msgspec.structs.replace(before.settings.trainer, accumulate_grad_batches=4)
    settings = msgspec.structs.replace(before.settings, trainer=trainer)
    applied = (AppliedTreatment(treatment="loader-workers=1", finding="PD101", epoch=1, status="applied"),)
    for changed in (
        msgspec.structs.replace(before, settings=settings),
        msgspec.structs.replace(before, applied=applied),
    ):
        assert workers(with_stable_advice(now, changed)) == 2


def test_value_changes_in_another_run_and_in_the_first_diagnosis() -> None:
    before, now = diagnosed(finding(1)), diagnosed(finding(2))
    other = msgspec.structs.replace(before, run=msgspec.structs.replace(before.run, id="another"))
    assert workers(with_stable_advice(now, other)) == 2
    assert with_stable_advice(now, None) is now


@pytest.mark.parametrize("more", [(), (CHEAPER,)])
def test_value_stays_when_other_recommendations_change(more: tuple[Prescription, ...]) -> None:
    before = diagnosed(finding(1, more=() if more else (CHEAPER,)))
    assert workers(with_stable_advice(diagnosed(finding(2, more=more)), before)) == 1


def test_new_recommendation_is_shown_when_it_differs_in_kind() -> None:
    now = diagnosed(msgspec.structs.replace(finding(2), prescriptions=(CHEAPER,)))
    assert with_stable_advice(now, diagnosed(finding(1))) == now
