"""PD906: a probe or a report failed and was switched off."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.rule import rule


@rule("PD906", "probe-switched-off")
def check(session: Session) -> Finding | None:
    if not session.probes_off:
        return None
    names = ", ".join(sorted({failure.probe for failure in session.probes_off}))
    return make_finding(
        severity="info",
        summary=f"Switched off after an error: {names}. Their measurements are missing from then on.",
        evidence=(fact(f"{one.probe} at step {one.step}", one.error) for one in session.probes_off),
        prescriptions=fix("report the error to the developers of lightning-perf", "minutes"),
    )
