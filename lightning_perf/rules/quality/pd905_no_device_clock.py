"""PD905: an accelerator is in use, but steps were not timed by device events."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import is_cpu_run, steady_of


def _depends_on_device_time(finding: Finding) -> bool:
    """Return whether a finding would differ with device times instead of host times."""
    return finding.category in ("data", "transfer", "compute")


@rule("PD905", "no-device-clock", weakens=_depends_on_device_time)
def check(session: Session) -> Finding | None:
    if is_cpu_run(session):
        return None
    if steady_of(session).device is not None:
        return None
    reason = session.missing.get("steady.device", "the reason is unknown")
    return make_finding(
        severity="info",
        summary=f"Device times were not measured: {reason}.",
        evidence=fact("device", ", ".join(d.name for d in session.machine.devices) or "unknown"),
    )
