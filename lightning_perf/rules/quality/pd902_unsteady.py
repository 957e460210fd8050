"""PD902: the two halves of the measured steps disagree."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import steady_of

DOCS = """\
## What it measures
Whether the medians of the two halves of the measured steps agree within a tenth.

## Why it costs
Where steps change during the measurement, a mean over all of them describes none. Findings that rest on it are shown
with less confidence.

## Example
```text
steps 0-100: 20 ms; steps 100-200: 27 ms
```

## Prescription
Measure longer, on a machine without other work. PD605 tells whether there was one point of change.

## When it is wrong
Batches whose size changes on purpose are unsteady without being badly measured.

## Sources
The steady-state criterion of this project's trials (agreement of halves).
"""


def check(session: Session) -> Finding | None:
    """Report halves that disagree."""
    steady = steady_of(session)
    if steady.is_steady is None:
        raise Skip("fewer than 20 steps: two halves cannot be compared")
    if steady.is_steady:
        return None
    return unsigned_finding(
        severity="info",
        summary="Step time changed by over 10 % between the halves of the run; averages are unreliable.",
        evidence=(fact("the halves agree within 10 %", False, n=steady.n_steps),),
        prescriptions=(fix("measure longer, on a machine without other load", "minutes"),),
    )


def _rests_on_it(finding: Finding) -> bool:
    """Return whether a finding rests on steps."""
    return bool(finding.claims) or finding.gain is not None


RULE = Rule(code="PD902", name="unsteady", category="quality", docs=DOCS, check=check, weakens=_rests_on_it)
