"""PD901: too few steps for reliable averages."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import claims_time, fact, fix, make_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import steps_text
from lightning_perf.rules.thresholds import MIN_RELIABLE_STEPS


@rule("PD901", "too-few-steps", weakens=claims_time)
def check(session: Session) -> Finding | None:
    if session.steady is None and session.run.n_steps == 0:
        raise Skip(session.missing.get("steady", "no step was run"))
    n_steps = session.steady.n_steps if session.steady is not None else 0
    if n_steps >= MIN_RELIABLE_STEPS:
        return None
    were = "was" if n_steps == 1 else "were"
    summary = (
        f"Only {steps_text(session, n_steps)} {were} measured in the steady state. Averages of so few are unreliable."
    )
    if n_steps == 0:
        summary = "No steps were measured in the steady state."
    return make_finding(
        severity="info",
        summary=summary,
        evidence=fact("steps in the steady state", n_steps, "count", MIN_RELIABLE_STEPS, n_steps),
        prescriptions=fix(f"run at least {MIN_RELIABLE_STEPS} steps after the warm-up", "one line"),
    )
