"""PD708: gradients are exchanged one by one instead of in buckets."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.rank_signals import small_part
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import COLLECTIVES_MIN_SMALL, LOW_SHARE
from lightning_perf.rules.trace_reading import complete_reading_of
from lightning_perf.rules.wording import duration, percent


@rule("PD708", "many-small-collectives")
def check(session: Session) -> Finding | None:
    reading = complete_reading_of(session)
    communication = reading.trace.communication
    if communication is None or not reading.trace.steps:
        return None
    part = small_part(reading)
    small = part * communication.n_per_step
    exposed_s = part * reading.path_s("communication")
    if not part or reading.share(exposed_s) < LOW_SHARE:
        return None
    _, most_s = reading.saved_s("communication", exposed_s)
    return reading.finding(
        summary=(
            f"{small:.0f} small collectives per step (median {duration(communication.median_s or 0.0)}) take "
            f"{percent(reading.share(exposed_s))} of the time while no other kernel runs."
        ),
        evidence=(
            fact("small collectives per step", small, "count", COLLECTIVES_MIN_SMALL),
            reading.evidence("exposed time of small collectives", exposed_s, LOW_SHARE),
        ),
        prescriptions=fix(
            "exchange gradients in buckets, as DDP does (bucket_cap_mb=25)",
            "minutes",
            code="Trainer(..., strategy=DDPStrategy(..., bucket_cap_mb=25))",
        ),
        high_s=most_s,
        basis="at most the time of these collectives; their bytes are still exchanged",
        confidence="high" if communication.small_per_step is not None else "medium",
    )
