"""Stable recommendations: values change between diagnoses of a run only if the evidence changes."""

from typing import Any

import msgspec

from lightning_perf.records import Finding, Prescription, Session, Settings

from .verdict import verdict_of


def with_stable_advice(session: Session, previous: Session | None) -> Session:
    """Return a diagnosis that repeats the recommended values of the previous one unless the evidence has changed.

    A new value is recommended if the settings have changed, if the speedup was obtained by another method (measured
    instead of modeled), or if the intervals of the old and the new speedup do not overlap. An earlier value keeps its
    expected speedup. If both diagnoses recommend the same value, the new speedup counts, which rests on more steps.
    """
    if previous is None or previous.run.id != session.run.id:
        return session
    if (_chosen(previous.settings), previous.applied) != (_chosen(session.settings), session.applied):
        return session
    before = {finding.code: finding for finding in previous.findings}
    findings = tuple(_stable(finding, before.get(finding.code)) for finding in session.findings)
    if findings == session.findings:
        return session
    verdict = verdict_of(session, findings, session.outcomes)
    return msgspec.structs.replace(session, findings=findings, verdict=verdict)


def _chosen(settings: Settings) -> tuple[Any, ...]:
    """Return the settings without what was observed of optimizers, which changes during the run."""
    model, replace = settings.model, msgspec.structs.replace
    if model is None:
        return (settings,)
    optimizers = [(one.class_name, one.implementation, one.n_tensors, one.n_elements) for one in model.optimizers]
    return replace(settings, model=replace(model, optimizers=())), optimizers


def _stable(finding: Finding, before: Finding | None) -> Finding:
    if before is None or not _is_same_evidence(finding, before):
        return finding
    now, old = finding.prescriptions, before.prescriptions
    if not now or not old or now[0] == old[0] or _without_values(now[0]) != _without_values(old[0]):
        return finding
    return msgspec.structs.replace(finding, prescriptions=old, gain=before.gain)


def _is_same_evidence(finding: Finding, before: Finding) -> bool:
    new, old = finding.gain, before.gain
    if new is None or old is None:
        return new is old
    return new.method == old.method and new.low <= old.high and old.low <= new.high


def _without_values(fix: Prescription) -> tuple[Any, ...]:
    """Return the parts of a recommendation other than its values."""
    return fix.treatment, fix.safety, fix.effort, tuple(fix.trainer_flags), tuple(fix.loader_args), bool(fix.code)
