"""PD112: shared memory is too small for the prefetched batches."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.machine_signals import sampled_host
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import loaders_of
from lightning_perf.rules.thresholds import DEFAULT_PREFETCH, SHM_SAFETY_FACTOR


@rule("PD112", "shm-too-small")
def check(session: Session) -> Finding | None:
    loader = max(loaders_of(session, "train"), key=lambda each: each.num_workers or 0)
    if not loader.num_workers:
        return None
    size_bytes = required(session.machine.shm_bytes, "there is no /dev/shm")
    batch_bytes = _batch_bytes(session)
    n_ready = (loader.prefetch_factor or DEFAULT_PREFETCH) * loader.num_workers * session.machine.local_world_size
    needed_bytes = SHM_SAFETY_FACTOR * n_ready * batch_bytes
    if size_bytes >= needed_bytes:
        return None
    gib = max(1, -(-needed_bytes // 2**30))
    # Not rated by time saved: the run may crash.
    return make_finding(
        severity="high" if size_bytes < n_ready * batch_bytes else "medium",
        summary=(
            f"/dev/shm has {size_bytes / 2**20:.0f} MiB, and prefetched batches need "
            f"{n_ready * batch_bytes / 2**20:.0f} MiB. When it is full, workers die with a bus error."
        ),
        evidence=(
            fact("size of /dev/shm", size_bytes, "bytes", needed_bytes),
            fact("batches prefetched at most", n_ready, "count"),
            fact("bytes of the first batch", batch_bytes, "bytes"),
        ),
        prescriptions=fix(
            f"enlarge /dev/shm to {gib} GiB, or lower prefetch_factor or num_workers",
            "one line",
            code=f"docker run --shm-size={gib}g ...",
        ),
    )


def _batch_bytes(session: Session) -> int:
    host = sampled_host(session)
    probe = session.loader_probe
    if probe is not None and probe.batch_bytes and probe.stage == "train":
        return max(probe.batch_bytes, (host.batch_bytes or 0) if host is not None else 0)
    if host is None or not host.batch_bytes:
        raise Skip("the size of a batch is not known")
    return host.batch_bytes
