"""PD403: optimizer states are most of the memory in use."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding
from lightning_perf.rules.memory_signals import breakdown_of, fraction_in_use, is_tight, smaller_optimizer
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.thresholds import DOMINANT_PART
from lightning_perf.rules.wording import percent, size_text


@rule("PD403", "optimizer-states-dominate")
def check(session: Session) -> Finding | None:
    breakdown = breakdown_of(session)
    n_bytes = required(breakdown.optimizer_bytes, breakdown.optimizer_basis)
    fraction = fraction_in_use(breakdown, n_bytes)
    if fraction <= DOMINANT_PART:
        return None
    is_limited = is_tight(session)
    return make_finding(
        severity="medium" if is_limited else "info",
        summary=(
            f"Optimizer states are {percent(fraction)} of the memory in use ({size_text(n_bytes)})."
            + (" Memory limits this run." if is_limited else "")
        ),
        evidence=(
            fact("optimizer states ÷ memory in use", fraction, "fraction", DOMINANT_PART),
            fact("optimizer states", n_bytes, "bytes"),
        ),
        prescriptions=smaller_optimizer(session),
    )
