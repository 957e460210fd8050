"""PD103: fetching a batch from a worker takes longer than making it."""

from lightning_perf.records import Finding, LoaderSettings, Method, Session, StageTimes
from lightning_perf.rules.findings import fact, timed_finding, without_workers
from lightning_perf.rules.loader_curve import plan_workers, probed_loader_of, saved_by
from lightning_perf.rules.loader_signals import (
    in_process_of,
    is_bursty,
    is_transport_costly,
    is_waiting,
    lost_to_workers_s,
    worker_start_s,
)
from lightning_perf.rules.machine_signals import wait_share
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import loaders_of, steady_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import duration


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
    return _finding(
        steady,
        loader,
        (with_workers_s, in_process_s, basis),
        {"data_wait": waited_s, "epoch_boundary": from_start_s},
        0.0 if probed is None else steady.n_span_steps * probed[0],
        "modeled" if probed is None else "probed",
    )


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
        else "at most the extra time per batch with workers",
        confidence="medium",
    )


def _has_another_cause(session: Session) -> bool:
    """Return whether the probe found expensive transport (PD109), uneven samples (PD105) or blocking I/O (PD106)."""
    probe = session.loader_probe
    if probe is None or probe.getitem is None:
        return False
    return is_waiting(probe) or is_bursty(probe) or is_transport_costly(probed_loader_of(session))
