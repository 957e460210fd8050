"""PD103: fetching a batch from a worker takes longer than making it."""

from lightning_perf.records import Finding, LoaderSettings, Method, Session, StageTimes
from lightning_perf.rules.findings import fact, timed_finding, without_workers
from lightning_perf.rules.loader_curve import plan_workers, probed_loader_of, sampling_part, saved_by
from lightning_perf.rules.loader_signals import is_bursty, is_transport_costly, is_waiting, lost_to_workers_s
from lightning_perf.rules.machine_signals import compute_claims, wait_share
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import loaders_of, steady_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import duration
from lightning_perf.rules.worker_starts import in_process_of, least_start_s, worker_start_s


@rule("PD103", "workers-cost-more-than-they-save", line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    if session.steady is None and session.loader_probe is not None:
        return _predicted(session)
    steady = steady_of(session)
    loader = loaders_of(session)[0]
    fetch = steady.fetch
    if required(loader.num_workers, "the number of workers is not known") == 0:
        return None
    in_process_s, basis = in_process_of(session, steady)
    if fetch is None or in_process_s is None:
        raise Skip(f"the cost of a batch without workers: {basis}")
    plan = plan_workers(session, loader, steady, wait_share(steady))
    saved_s = lost_to_workers_s(session, steady, plan)
    if _has_another_cause(session) or not saved_s:
        return None
    restart_s = worker_start_s(session, steady)
    with_workers_s = fetch.wait_s.p50 + restart_s / steady.n_span_steps
    alone = next((step for step in plan.steps if step.num_workers == 0 and step.is_measured), None)
    probed = saved_by(session, steady.step_s.mean, plan.now, alone) if alone is not None else None
    from_start_s = min(saved_s, restart_s)
    waited_s = saved_s - from_start_s if probed is None else steady.n_span_steps * probed[1]
    # In the training process, a batch may take twice as long as where nothing else runs.
    for_batches_s = wait_share(steady) * steady.span_s * (1 - sampling_part(session, steady))
    least_waited_s = for_batches_s - 2 * steady.n_span_steps * in_process_s
    low_s = max(0.0, least_waited_s, 0.0 if probed is None else steady.n_span_steps * probed[0])
    low_s += least_start_s(session, steady)
    return _finding(
        steady,
        loader,
        (with_workers_s, in_process_s, basis),
        {
            "data_wait": max(waited_s, least_waited_s),
            "epoch_boundary": from_start_s,
            **compute_claims(steady, _queueing_for_workers(session)),
        },
        low_s,
        "probed" if probed is not None else "timed" if low_s else "modeled",
    )


def _queueing_for_workers(session: Session) -> float:
    """Return at most which fraction of its time the training queues for cores that run workers; 0 where not sampled."""
    host = session.telemetry.host if session.telemetry is not None else None
    if host is None or host.workers_cpu_cores is None:
        return 0.0
    return min(host.process_queueing_fraction or 0.0, host.workers_cpu_cores.mean)


def _predicted(session: Session) -> Finding | None:
    """Return the finding without timed steps, from the probe and the measured compute time of the model."""
    probed = probed_loader_of(session)
    plan, stage = probed.plan, probed.stage
    alone = next((step for step in plan.steps if step.num_workers == 0), None)
    if plan.n_now == 0 or plan.now is None or alone is None or _has_another_cause(session):
        return None
    saved_s = stage.n_span_steps * (plan.now.step_s - alone.step_s)
    if saved_s < LOW_SHARE * stage.span_s:
        return None
    times = (plan.now.fetch_s, plan.batch_s, plan.basis)
    return _finding(stage, probed.loader, times, {"data_wait": saved_s}, 0.0, "probed")


def _finding(
    stage: StageTimes,
    loader: LoaderSettings,
    times: tuple[float, float, str],
    claims: dict[str, float],
    low_s: float,
    method: Method,
) -> Finding:
    with_workers_s, in_process_s, basis = times
    n = loader.num_workers or 0
    return timed_finding(
        stage,
        summary=(
            f"Fetching a batch from a worker takes {duration(with_workers_s)}, making it without workers "
            f"{duration(in_process_s)}. Worker processes take more time than they save."
        ),
        evidence=(
            fact("time per batch with workers", with_workers_s, "s"),
            fact(f"time per batch without workers ({basis})", in_process_s, "s"),
            fact("num_workers", n),
        ),
        prescriptions=without_workers(loader, f"set num_workers=0 (now {n})"),
        claims=claims,
        low_s=low_s,
        method=method,
        basis="the probed step without workers"
        if method == "probed"
        else "the extra time per batch with workers; at most also the time in which the training queues for cores",
        confidence="medium",
    )


def _has_another_cause(session: Session) -> bool:
    """Return whether the probe found expensive transport (PD109), uneven samples (PD105) or blocking I/O (PD106)."""
    probe = session.loader_probe
    if probe is None or probe.getitem is None:
        return False
    return is_waiting(probe) or is_bursty(probe) or is_transport_costly(probed_loader_of(session))
