"""PD905: an accelerator is in use, but its clock was not read."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, unsigned_finding
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.signals import is_cpu_run, steady_of

DOCS = """\
## What it measures
Whether steps on an accelerator were timed by the device's own events.

## Why it costs
The host runs ahead of the device: what the host waits for need not be what the device lacks. Findings about data and
compute then rest on the host's view, and are shown with less confidence.

## Example
```text
cuda:0, but no device event was resolved
```

## Prescription
See the reason; `device_stats=True` and a current driver help.

## When it is wrong
On a CPU there is no such clock and none is needed.

## Sources
The documentation of `torch.Event`; the lecture on asynchronous execution of devices.
"""


def check(session: Session) -> Finding | None:
    """Report a device whose times are missing."""
    if is_cpu_run(session):
        return None
    if steady_of(session).device is not None:
        return None
    reason = session.missing.get("steady.device", "the reason is unknown")
    return unsigned_finding(
        severity="info",
        summary=f"Device times were not measured: {reason}.",
        evidence=(fact("device", ", ".join(d.name for d in session.machine.devices) or "unknown"),),
    )


def _rests_on_it(finding: Finding) -> bool:
    """Return whether a finding differs between host and device times."""
    return finding.category in ("data", "transfer", "compute")


RULE = Rule(code="PD905", name="no-device-clock", category="quality", docs=DOCS, check=check, weakens=_rests_on_it)
