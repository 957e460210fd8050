"""PD106: the loader waits for storage instead of computing."""

from lightning_perf.records import Finding, HostTelemetry, Session
from lightning_perf.rules.findings import fact, fix, optional_fact, timed_finding
from lightning_perf.rules.loader_curve import ProbedLoader, probed_loader_of, timed_steps_of
from lightning_perf.rules.loader_signals import (
    costliest_function_text,
    function_evidence,
    is_bursty,
    is_serialized,
    is_waiting,
    items_in_memory,
    sample_share,
    wait_evidence,
    wait_fact,
    with_kept_items,
)
from lightning_perf.rules.machine_signals import (
    host_telemetry_of,
    is_blocked,
    loading_wait,
    sampled_host,
    telemetry_fact,
    wait_share,
)
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import is_cpu_run, loaders_of
from lightning_perf.rules.thresholds import (
    BLOCKED_MIN_CORES,
    BLOCKED_MIN_FRACTION,
    COMPUTES_MIN_FRACTION,
    DISK_BUSY_MIN,
    IOWAIT_MIN_FRACTION,
    WAIT_MIN_SHARE,
)
from lightning_perf.rules.wording import percent, spent_waiting

BASIS = "at most the data wait in which the loader was blocked"

_FASTER_STORAGE = fix("pack the dataset into large shards, or copy it to a fast disk", "hours")


@rule("PD106", "storage-bound", explains=("PD101",), line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    steady = timed_steps_of(session)
    share = wait_share(steady)
    if share < WAIT_MIN_SHARE:
        return None
    probe = session.loader_probe
    if probe is not None and probe.getitem_cpu_fraction is not None:
        if not is_waiting(probe) or is_bursty(probe) or is_serialized(probe):
            return None  # PD107 (computing), PD105 (a few slow samples) or PD115 (workers block one another) applies.
        return _probed(session, probed_loader_of(session), 1.0 - probe.getitem_cpu_fraction)
    if any(each.n_threads is not None for each in loaders_of(session)):
        return None  # the training thread is blocked on the pipeline's own threads
    n_workers = max(each.num_workers or 0 for each in loaders_of(session))
    host = host_telemetry_of(session)
    wait = loading_wait(host, n_workers)
    blocked = wait.blocked
    iowait = host.iowait_fraction.mean if host.iowait_fraction is not None else None
    if blocked is None and iowait is None:
        raise Skip("the kernel reports neither how long the loader is blocked nor how long cores are idle for I/O")
    has_high_iowait = iowait is not None and iowait >= IOWAIT_MIN_FRACTION
    if not (has_high_iowait if blocked is None else is_blocked(wait, BLOCKED_MIN_FRACTION)):
        return None
    if n_workers == 0 and _computes_in_threads(session, host, share):
        return None
    waited, disk = blocked if blocked is not None else (iowait or 0.0), host.dataset_disk
    how = (
        f"for {percent(blocked)} of that, the loader is blocked"
        if blocked is not None
        else f"cores are idle for I/O {percent(waited)} of the time, and the loader is likely blocked"
    )
    return timed_finding(
        steady,
        summary=f"{spent_waiting(share)}; {how} on {_what(host)}.",
        evidence=(
            wait_fact(share, steady.n_steps),
            optional_fact(
                "fraction of data wait in which the loader is blocked",
                blocked,
                "fraction",
                max(wait.queueing or 0.0, BLOCKED_MIN_FRACTION * (1.0 - (wait.queueing or 0.0))),
            ),
            telemetry_fact("cores idle for I/O", host.iowait_fraction, "fraction", IOWAIT_MIN_FRACTION),
            telemetry_fact("utilization of the busiest disk", host.disk_busy_fraction, "fraction", DISK_BUSY_MIN),
            telemetry_fact("read from storage per second", host.read_bytes_per_s, "bytes"),
            optional_fact("file system of the dataset", disk.file_system if disk is not None else None),
        ),
        prescriptions=(items_in_memory(session), _FASTER_STORAGE),
        claims={"data_wait": waited * share * steady.span_s},
        basis=BASIS,
        confidence="high" if blocked is not None and _is_disk_slow(host, has_high_iowait) else "medium",
    )


def _probed(session: Session, probed: ProbedLoader, waited: float) -> Finding:
    """Return the finding from the loader probe, which names the function that waits."""
    host, probe, in_memory = sampled_host(session), probed.probe, items_in_memory(session)
    sample_s = probe.getitem.mean_s if probe.getitem is not None else 0.0
    saved_s, basis = waited * probed.share * probed.stage.span_s, BASIS
    if in_memory is not None:
        saved_s, basis = probed.saved_s(sample_share(probe)), "at most the data wait for samples"
    finding = timed_finding(
        probed.stage,
        summary=(
            f"{spent_waiting(probed.share)}; making a sample is blocked on "
            f"{_what(host) if host is not None else 'storage, a network or a lock'} {percent(waited)} of its "
            f"time.{costliest_function_text(probe)}"
        ),
        evidence=(
            wait_evidence(probed),
            fact("fraction of sample time spent blocked", waited, "fraction", 1.0 - COMPUTES_MIN_FRACTION),
            fact("time per sample", sample_s, "s"),
            optional_fact("read from storage per sample", probe.read_bytes, "bytes"),
            *function_evidence(probe, "getitem", n=1),
        ),
        prescriptions=(in_memory, _FASTER_STORAGE),
        claims={"data_wait": saved_s},
        method="probed",
        basis=basis,
        confidence="medium" if probed.is_predicted else "high",
    )
    return with_kept_items(session, probed, finding)


def _computes_in_threads(session: Session, host: HostTelemetry, share: float) -> bool:
    """Return whether the process used more CPU than training explains, so that the dataset computes in threads."""
    if host.process_cpu_cores is None:
        return False
    n_threads = max(1, session.settings.torch.n_threads or 1) if is_cpu_run(session) else 1
    return host.process_cpu_cores.mean > (1.0 - share) * n_threads + BLOCKED_MIN_CORES * share


def _is_disk_slow(host: HostTelemetry, has_high_iowait: bool) -> bool:
    is_busy = host.disk_busy_fraction is not None and host.disk_busy_fraction.mean >= DISK_BUSY_MIN
    return has_high_iowait or is_busy or (host.dataset_disk is not None and host.dataset_disk.is_network)


def _what(host: HostTelemetry) -> str:
    """Return what the loader is blocked on; a disk only if telemetry shows that it is slow."""
    disk = host.dataset_disk
    iowait = host.iowait_fraction.mean if host.iowait_fraction is not None else 0.0
    if disk is None or not _is_disk_slow(host, iowait >= IOWAIT_MIN_FRACTION):
        return "storage, a network or a lock"
    kind = "network storage" if disk.is_network else "a spinning disk" if disk.is_rotational else "its disk"
    return f"{kind} ({disk.file_system} at {disk.mount})"
