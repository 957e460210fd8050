"""PD102: workers queue for cores."""

import math

from lightning_perf.records import Finding, HostTelemetry, LoaderSettings, Prescription, Session
from lightning_perf.rules.findings import fact, fix, loader_fix, optional_fact, timed_finding
from lightning_perf.rules.loader_curve import WorkerPlan, plan_workers
from lightning_perf.rules.loader_signals import is_waiting, wait_fact
from lightning_perf.rules.machine_signals import host_telemetry_of, is_blocked, loading_wait, telemetry_fact, wait_share
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import cores_per_rank, loaders_of, steady_of
from lightning_perf.rules.thresholds import BLOCKED_MIN_FRACTION, CPU_BUSY_MIN, LOADER_QUEUEING_MIN, WAIT_MIN_SHARE
from lightning_perf.rules.wording import number_of, spent_waiting


@rule("PD102", "oversubscribed-workers", line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    share = wait_share(steady)
    if share < WAIT_MIN_SHARE:
        return None
    loader = max(loaders_of(session), key=lambda each: each.num_workers or 0)
    host = host_telemetry_of(session)
    n_workers = loader.num_workers or 0
    wait = loading_wait(host, n_workers)
    queueing = wait.queueing
    if queueing is None and host.cpu_busy_fraction is None and host.process_cpu_cores is None:
        raise Skip("neither queueing for cores nor CPU utilization was sampled")
    busy = _busy_fraction(session, host)
    is_contended = busy >= CPU_BUSY_MIN if queueing is None else queueing >= LOADER_QUEUEING_MIN
    if not is_contended or is_blocked(wait, BLOCKED_MIN_FRACTION):
        return None
    if session.loader_probe is not None and is_waiting(session.loader_probe):
        return None  # PD106 applies: storage is slow.
    plan = plan_workers(session, loader, steady, share)
    n_processes = n_workers * session.machine.local_world_size
    usable = session.machine.usable_cores
    lost_fraction = queueing if queueing is not None else max(0.0, 1.0 - usable / max(1, n_processes))
    who = number_of(n_processes, "worker") if n_workers else "the loader"
    how = f"queue{'' if n_processes > 1 else 's'} for {usable:g} usable core{'' if usable == 1 else 's'}"
    return timed_finding(
        steady,
        summary=f"{spent_waiting(share)} while {who} {how}.",
        evidence=(
            wait_fact(share, steady.n_steps),
            fact("workers on this node", n_processes, "count", usable),
            optional_fact("fraction of data wait spent queueing for a core", queueing, "fraction", LOADER_QUEUEING_MIN),
            optional_fact("usable cores busy", busy or None, "fraction", CPU_BUSY_MIN),
            telemetry_fact("CPU cores used by workers", host.workers_cpu_cores, "count"),
        ),
        prescriptions=_prescription(session, loader, n_processes, plan),
        claims={"data_wait": lost_fraction * share * steady.span_s},
        basis="at most the data wait in which the loader queued for a core",
        confidence="high" if queueing is not None and n_processes > usable else "medium",
    )


def _busy_fraction(session: Session, host: HostTelemetry) -> float:
    """Return the busy fraction of the usable cores: of all programs, or of this training relative to its quota."""
    busy = host.cpu_busy_fraction.mean if host.cpu_busy_fraction is not None else 0.0
    own = sum(each.mean for each in (host.process_cpu_cores, host.workers_cpu_cores) if each is not None)
    return max(busy, min(1.0, own / session.machine.usable_cores))


def _prescription(session: Session, loader: LoaderSettings, n_processes: int, plan: WorkerPlan) -> Prescription:
    n_fitting = max(1, math.floor(cores_per_rank(session)))
    why = "usable cores ÷ ranks on this node"
    if plan.chosen is not None and 0 < plan.chosen.num_workers < n_fitting:
        n_fitting, why = plan.chosen.num_workers, "more are no faster (measured)"
    if n_processes > session.machine.usable_cores and (loader.num_workers or 0) > n_fitting:
        summary = f"set num_workers={n_fitting} (now {loader.num_workers}) on the {loader.stage} loader: {why}"
        return loader_fix(loader, summary, "loader-workers", num_workers=n_fitting, persistent_workers=True)
    if loader.num_workers:
        return fix(
            "use one thread per worker, and stop other programs on these cores",
            "minutes",
            code=(
                "def one_thread(worker_id):\n    ...  # limit the threads of the libraries that the dataset calls\n\n"
                "DataLoader(..., worker_init_fn=one_thread)"
            ),
        )
    return fix("stop other programs on these cores, or use another machine", "minutes")
