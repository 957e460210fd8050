"""PD332: activations are computed again in backward, although they would fit into memory."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.memory_signals import device_memory_of
from lightning_perf.rules.signals import is_cpu_run
from lightning_perf.rules.thresholds import NEAR_CAPACITY_FRACTION
from lightning_perf.rules.wording import percent, size_text


@known_result_rule("PD332", "needless-checkpointing", "recomputed")
def check(repeated: Repeated) -> Finding | None:
    found, (used_bytes, all_bytes) = repeated.found, _memory_of(repeated.session)
    fraction = (used_bytes + found.kept_bytes) / all_bytes if used_bytes and all_bytes else None
    if fraction is not None and fraction >= NEAR_CAPACITY_FRACTION:
        return None
    room = (
        f"with them, memory would be {percent(fraction)} full at most"
        if fraction is not None
        else f"they take {size_text(found.kept_bytes)} at most"
    )
    where = f" ({found.site})" if found.site else ""
    return repeated.saving_finding(
        summary=(
            f"{percent(found.backward_part)} of the backward pass computes activations again, because "
            f"checkpointing{where} did not keep them; {room}."
        ),
        counted="operators that compute again",
        more=(
            fact("results that would be kept", found.kept_bytes, "bytes"),
            fact("memory in use with them", fraction, "fraction", NEAR_CAPACITY_FRACTION),
        ),
        prescriptions=fix(
            "call the layers without activation checkpointing, or checkpoint fewer of them",
            "minutes",
            code="x = block(x)  # instead of checkpoint(block, x, use_reentrant=False)",
        ),
        least_s=repeated.least_s if fraction is not None else 0.0,
        basis="operators of one step, timed",
    )


def _memory_of(session: Session) -> tuple[int | None, int | None]:
    """Return the bytes in use at the peak and the capacity, of the fullest device or of the host; None if unknown."""
    if not is_cpu_run(session):
        device = device_memory_of(session)
        return device.peak_reserved_bytes, device.total_bytes
    host = session.memory.host
    return (host.used_bytes or host.peak_rss_bytes, host.limit_bytes) if host is not None else (None, None)
