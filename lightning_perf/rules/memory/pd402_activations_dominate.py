"""PD402: activations are most of the memory in use, and memory is nearly full."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, unsigned_finding
from lightning_perf.rules.memory_signals import bf16_of, breakdown_of, checkpointing_of, is_tight, whole_of
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.thresholds import DOMINANT_PART
from lightning_perf.rules.wording import percent, size_text


@rule("PD402", "activations-dominate")
def check(session: Session) -> Finding | None:
    """Compare activations with the memory in use."""
    breakdown = breakdown_of(session)
    if breakdown.activations_bytes is None:
        raise Skip(breakdown.activations_basis)
    whole = whole_of(breakdown)
    if whole <= 0:
        raise Skip("no memory was counted")
    fraction = breakdown.activations_bytes / whole
    if fraction <= DOMINANT_PART or not is_tight(session):
        return None
    return unsigned_finding(
        severity="medium",
        summary=(
            f"Activations are {percent(fraction)} of the memory in use ({size_text(breakdown.activations_bytes)}), "
            "and memory limits this run."
        ),
        evidence=(
            fact("activations ÷ memory in use", fraction, "fraction", DOMINANT_PART),
            fact("activations", breakdown.activations_bytes, "bytes"),
        ),
        prescriptions=(checkpointing_of(session), *bf16_of(session)),
    )
