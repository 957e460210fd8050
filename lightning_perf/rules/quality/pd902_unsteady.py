"""PD902: step time differs between the halves of the run."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import claims_time, fact, fix, make_finding
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import GROWTH_MIN


@rule("PD902", "unsteady", weakens=claims_time)
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    if required(steady.is_steady, "fewer than 20 steps: two halves cannot be compared"):
        return None
    device = steady.device
    if device is not None and device.step_s.std < GROWTH_MIN * device.step_s.mean:
        raise Skip("the device's own steps are steady: at first, the host ran ahead of it")
    return make_finding(
        severity="info",
        summary="Step time changed by over 10 % between the halves of the run; averages are unreliable.",
        evidence=fact("the halves agree within 10 %", False, n=steady.n_steps),
        prescriptions=fix("measure longer, on a machine without other load", "minutes"),
    )
