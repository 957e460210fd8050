"""PD402: activations are most of the memory in use, and memory is nearly full."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding
from lightning_perf.rules.memory_signals import (
    breakdown_of,
    checkpointing_of,
    fraction_in_use,
    half_precision_of,
    is_tight,
)
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.thresholds import DOMINANT_PART
from lightning_perf.rules.wording import percent, size_text


@rule("PD402", "activations-dominate")
def check(session: Session) -> Finding | None:
    breakdown = breakdown_of(session)
    n_bytes = required(breakdown.activations_bytes, breakdown.activations_basis)
    fraction = fraction_in_use(breakdown, n_bytes)
    if fraction <= DOMINANT_PART or not is_tight(session):
        return None
    return make_finding(
        severity="medium",
        summary=(
            f"Activations are {percent(fraction)} of the memory in use ({size_text(n_bytes)}), "
            "and memory limits this run."
        ),
        evidence=(
            fact("activations ÷ memory in use", fraction, "fraction", DOMINANT_PART),
            fact("activations", n_bytes, "bytes"),
        ),
        prescriptions=(checkpointing_of(session), half_precision_of(session)),
    )
