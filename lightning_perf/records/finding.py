"""Results of the rules: findings with evidence, recommendations and expected speedups."""

from typing import Any, Literal

from .base import Record
from .text import clean_line

Severity = Literal["high", "medium", "low", "info"]
Confidence = Literal["high", "medium", "low"]
Safety = Literal["exact", "numerics", "semantics"]
Effort = Literal["one line", "minutes", "hours"]

Method = Literal["timed", "replayed", "probed", "tried", "modeled"]

SAFETIES: tuple[Safety, ...] = ("exact", "numerics", "semantics")
"""From safest to least safe; each includes the ones before it."""

SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "info")
"""From worst to least."""


class Evidence(Record, frozen=True, kw_only=True):
    """A measured fact that a finding rests on.

    Attributes:
        metric: What was measured, in words a report can print, e.g. ``"share of the step waiting for data"``.
        value: The figure, or a short text for a setting.
        unit: ``"s"``, ``"fraction"``, ``"bytes"``, ``"count"``, ``"ratio"`` … ; empty for a setting.
        threshold: The bound that it crossed; None if there is none.
        n: Number of observations behind it; None for a setting.
    """

    metric: str
    value: float | int | str | bool
    unit: str = ""
    threshold: float | None = None
    n: int | None = None


class Prescription(Record, frozen=True, kw_only=True):
    """One change that a user can make.

    Attributes:
        treatment: Id of the treatment, e.g. ``"loader-workers"``; empty if it is advice only.
        safety: ``exact`` (same results up to data order), ``numerics`` (rounding), ``semantics`` (the training itself).
        effort: ``"one line"``, ``"minutes"`` or ``"hours"``.
        trainer_flags: Keyword arguments for ``Trainer``.
        loader_args: Keyword arguments for ``DataLoader``.
        code: What to paste, as Python.
        value: Value of the treatment, if it is neither in ``trainer_flags`` nor in ``loader_args``; None for none.
        frees_bytes: Memory that it frees, modeled from what memory held; None if unknown.
    """

    treatment: str
    summary: str
    safety: Safety
    effort: Effort
    trainer_flags: dict[str, Any] = {}
    loader_args: dict[str, Any] = {}
    code: str = ""
    value: int | str | None = None
    frees_bytes: int | None = None


class Gain(Record, frozen=True, kw_only=True):
    """The expected speedup: old wall time ÷ new wall time of the steady span.

    Attributes:
        low: Lower end, ≥ 1.0 (1.0: it may gain nothing).
        high: Upper end, bounded by the time that is exclusive to the cause (Amdahl's law). Where steps were timed on a
            CPU, this time may be off by 10 %, unless it was probed, and the rest of a step may be as fast as in the
            fastest hundredth of the steps.
        method: How it was obtained: ``timed`` (the fix removes the measured time), ``replayed`` (operators run again
            with the treatment), ``probed`` (the loader alone), ``tried`` (in a trial) or ``modeled`` (not measured).
    """

    low: float
    high: float
    basis: str
    method: Method = "modeled"


class Finding(Record, frozen=True, kw_only=True):
    """One diagnosis.

    Attributes:
        name: Reads as "allow <name>".
        category: ``data``, ``transfer``, ``compute``, ``memory``, ``host``, ``loop``, ``distributed``, ``system``
            or ``quality``.
        severity: By the share of wall time that the fix saves at least; at most ``low`` if the speedup is only modeled.
            Findings without a speedup, e.g. about memory, by how close the failure is.
        summary: One or two sentences with the figures.
        prescriptions: What to change, best first.
        gain: None if no gain in time can be promised (quality of measurement, memory).
        confidence: Lower if there are ``PD9xx`` findings, or if ``is_preflight``.
        claims: Seconds of the steady span, by phase, that the fix saves at most. Findings that claim the same
            phase share that time; their gains never add up.
        is_preflight: Found before the first step, from settings alone.
    """

    code: str
    name: str
    category: str
    severity: Severity
    summary: str
    evidence: tuple[Evidence, ...]
    prescriptions: tuple[Prescription, ...] = ()
    gain: Gain | None = None
    confidence: Confidence = "high"
    claims: dict[str, float] = {}
    is_preflight: bool = False

    def __repr__(self) -> str:
        """Return one line; `str` gives evidence and recommendations too."""
        text = f"{self.code} {self.name}, {self.severity}: {self.summary}"
        return f"Finding({clean_line(text)})"


LINE_METRIC = "time in "
"""Prefix of metrics that name a line of code and the function that it calls."""


def costly_line(finding: Finding) -> str:
    """Return the line of code that takes a finding's time, from its evidence; empty if it names none."""
    named = (one.metric for one in finding.evidence if one.metric.startswith(LINE_METRIC))
    return next(named, "").removeprefix(LINE_METRIC)


class RuleOutcome(Record, frozen=True, kw_only=True):
    """Outcome of one rule; every rule has one.

    Attributes:
        status: ``finding``, ``passed``, ``skipped`` (a signal is missing), ``ignored`` (deselected) or ``failed``.
        reason: Why it was skipped, ignored or failed, or what explains its symptom; empty otherwise.
    """

    code: str
    status: Literal["finding", "passed", "skipped", "ignored", "failed"]
    reason: str = ""


class Verdict(Record, frozen=True, kw_only=True):
    """The one thing to do first.

    Attributes:
        category: The finding's category, or ``"healthy"``, or ``"unknown"`` when too little was measured.
        code: The finding's code; None when healthy or unknown.
    """

    category: str
    code: str | None
    text: str
