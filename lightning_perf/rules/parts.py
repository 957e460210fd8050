"""Functions that create findings, evidence and recommendations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_perf.records import (
    Confidence,
    Effort,
    Evidence,
    Finding,
    Gain,
    LoaderSettings,
    Prescription,
    Safety,
    Severity,
)


def fact(
    metric: str, value: float | int | str | bool, unit: str = "", threshold: float | None = None, n: int | None = None
) -> Evidence:
    """Return evidence of a finding; the arguments are those of ``Evidence``."""
    return Evidence(metric=metric, value=value, unit=unit, threshold=threshold, n=n)


def fix(
    summary: str,
    effort: Effort,
    safety: Safety = "exact",
    *,
    treatment: str = "",
    code: str = "",
    trainer_flags: dict[str, Any] | None = None,
    loader_args: dict[str, Any] | None = None,
    value: int | str | None = None,
) -> Prescription:
    """Return a recommendation; the arguments are those of ``Prescription``."""
    return Prescription(
        treatment=treatment,
        summary=summary,
        safety=safety,
        effort=effort,
        trainer_flags=trainer_flags or {},
        loader_args=loader_args or {},
        code=code,
        value=value,
    )


def loader_fix(loader: LoaderSettings, summary: str, treatment: str, code: str = "", **arguments: Any) -> Prescription:
    """Return a recommendation of loader arguments, which is applied only if a treatment can change the loader.

    Args:
        loader: Settings of the loader.
        summary: As for ``Prescription``.
        treatment: As for ``Prescription``.
        code: The arguments in the example, if different from ``arguments``.
        **arguments: The arguments to set.
    """
    shown = code or ", ".join(f"{key}={value}" for key, value in arguments.items())
    return fix(
        summary,
        "one line",
        treatment="" if loader.why_unchanged() else treatment,
        loader_args={} if loader.why_unchanged() else arguments,
        code=f"{loader.call}(..., {shown})",
    )


def without_workers(loader: LoaderSettings, summary: str) -> Prescription:
    """Recommend no workers; ``persistent_workers`` is then reset, because ``DataLoader`` requires workers for it."""
    return loader_fix(loader, summary, "loader-workers", "num_workers=0", num_workers=0, persistent_workers=False)


def unsigned_finding(
    severity: Severity,
    summary: str,
    evidence: tuple[Evidence, ...],
    prescriptions: tuple[Prescription, ...] = (),
    confidence: Confidence = "high",
    claims: Mapping[str, float] | None = None,
    gain: Gain | None = None,
) -> Finding:
    """Return a finding; the arguments are those of ``Finding``. The engine adds code, name and category of the rule."""
    return Finding(
        code="",
        name="",
        category="",
        severity=severity,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        gain=gain,
        confidence=confidence,
        claims=dict(claims or {}),
    )


def compile_prescription(what: str) -> Prescription:
    """Recommend ``torch.compile``, which fuses small operators and launches them together in CUDA graphs."""
    return Prescription(
        treatment="compile",
        summary=f"torch.compile the model{what}",
        safety="numerics",
        effort="minutes",
        code='model = torch.compile(model, mode="reduce-overhead")  # before trainer.fit(model)',
        value="reduce-overhead",
    )
