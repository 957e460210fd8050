"""PD409: the host is close to its memory limit, or swaps."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.memory_signals import fewer_batches_ahead
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.thresholds import FULL_FRACTION, HOST_MEMORY_FRACTION, SWAPPED_MIN_BYTES
from lightning_perf.rules.wording import percent, size_text


@rule("PD409", "host-memory-pressure")
def check(session: Session) -> Finding | None:
    host = required(session.memory.host, session.missing.get("memory", "the host's memory was not read"))
    if not host.limit_bytes:
        raise Skip("neither a memory limit nor the size of the machine's memory is known")
    own_bytes = host.peak_rss_bytes or host.rss_bytes
    fraction = max(own_bytes, host.used_bytes or 0) / host.limit_bytes
    swapped_bytes = host.swapped_bytes or 0
    if fraction < HOST_MEMORY_FRACTION and swapped_bytes < SWAPPED_MIN_BYTES:
        return None
    limit = "the cgroup's memory limit" if host.limit_basis == "cgroup" else "the machine's memory"
    sentences = []
    if fraction >= HOST_MEMORY_FRACTION:
        sentences.append(f"{percent(fraction)} of {limit} ({size_text(host.limit_bytes)}) was in use.")
    if swapped_bytes >= SWAPPED_MIN_BYTES:
        sentences.append(f"{size_text(swapped_bytes)} of this training is swapped out.")
    return make_finding(
        severity="high" if fraction >= FULL_FRACTION else "medium",
        summary=" ".join(sentences),
        evidence=(
            fact(f"memory in use ÷ {limit}", fraction, "fraction", HOST_MEMORY_FRACTION),
            fact("peak resident memory of this process", own_bytes, "bytes"),
            fact("resident memory of its workers", host.workers_rss_bytes, "bytes", n=host.n_workers),
            fact("swapped out", swapped_bytes, "bytes", SWAPPED_MIN_BYTES),
        ),
        prescriptions=(
            fewer_batches_ahead(session),
            fix("stream data instead of keeping it in memory, or keep less", "hours"),
        ),
    )
