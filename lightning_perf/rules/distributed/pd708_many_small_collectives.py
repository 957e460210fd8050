"""PD708: gradients are exchanged one by one instead of in buckets."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rank_signals import small_part
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.thresholds import COLLECTIVES_MIN_SMALL, LOW_SHARE
from lightning_perf.rules.trace_signals import is_blind, path_s, reading_of, share_evidence, trace_finding, without
from lightning_perf.rules.wording import duration, percent


@rule("PD708", "many-small-collectives")
def check(session: Session) -> Finding | None:
    """Compare the time of small collectives without another kernel with the threshold."""
    reading = reading_of(session)
    if is_blind(reading.trace):
        raise Skip(reading.trace.missing.get("device", "the trace does not show what the device did"))
    communication = reading.trace.communication
    if communication is None or not reading.trace.steps:
        return None
    part = small_part(reading)
    small = part * communication.n_per_step
    exposed_s = part * path_s(reading.trace, "communication")
    if not part or reading.share(exposed_s) < LOW_SHARE:
        return None
    gone = without(reading, "communication")
    return trace_finding(
        reading,
        summary=(
            f"{small:.0f} small collectives per step (median {duration(communication.median_s or 0.0)}) take "
            f"{percent(reading.share(exposed_s))} of the time without a kernel beside them."
        ),
        evidence=(
            fact("small collectives per step", small, "count", COLLECTIVES_MIN_SMALL),
            share_evidence(reading, "small collectives while no other kernel ran", exposed_s, LOW_SHARE),
        ),
        prescriptions=(
            fix(
                "exchange gradients in buckets, as DDP does (bucket_cap_mb=25)",
                "minutes",
                code="Trainer(..., strategy=DDPStrategy(bucket_cap_mb=25))",
            ),
        ),
        low_s=0.0,
        high_s=min(exposed_s, gone[2]) if gone else exposed_s,
        method="timed",
        basis="at most these collectives; their bytes are still exchanged",
        confidence="high" if communication.small_per_step is not None else "medium",
    )
