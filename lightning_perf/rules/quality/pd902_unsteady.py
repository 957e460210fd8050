"""PD902: step time differs between the halves of the run."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import claims_time, fact, fix, unsigned_finding
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import steady_of


@rule("PD902", "unsteady", weakens=claims_time)
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    if required(steady.is_steady, "fewer than 20 steps: two halves cannot be compared"):
        return None
    return unsigned_finding(
        severity="info",
        summary="Step time changed by over 10 % between the halves of the run; averages are unreliable.",
        evidence=fact("the halves agree within 10 %", False, n=steady.n_steps),
        prescriptions=fix("measure longer, on a machine without other load", "minutes"),
    )
