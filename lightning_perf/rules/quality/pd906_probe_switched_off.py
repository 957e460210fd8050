"""PD906: a probe or a report failed and was switched off."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import Rule

DOCS = """\
## What it measures
Probes and reports of PerfDoctor that raised an error during the run.

## Why it costs
What a probe measures is missing from then on; rules that need it are skipped, with the reason. The training itself is
not affected.

## Example
```text
probe memory: RuntimeError at step 12
```

## Prescription
Report the error to this project. Nothing else needs to be done.

## When it is wrong
It is never wrong: the error was raised.

## Sources
This project's promise that no measurement ends a training.
"""


def check(session: Session) -> Finding | None:
    """Report the probes that failed."""
    if not session.probes_off:
        return None
    names = ", ".join(sorted({failure.probe for failure in session.probes_off}))
    return unsigned_finding(
        severity="info",
        summary=f"Switched off after an error: {names}. Their measurements are missing from then on.",
        evidence=tuple(
            fact(f"{failure.probe} at step {failure.step}", failure.error) for failure in session.probes_off
        ),
        prescriptions=(fix("report the error to the developers of lightning-perf", "minutes"),),
    )


RULE = Rule(code="PD906", name="probe-switched-off", category="quality", docs=DOCS, check=check)
