"""PD101: training waits for its loader; the number of workers that would hide loading."""

import math

from lightning_perf.records import Evidence, Finding, LoaderSettings, LoaderWait, Prescription, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, make_finding, timed_finding
from lightning_perf.rules.loader_curve import WorkerPlan, plan_evidence, plan_workers, predicted_steps
from lightning_perf.rules.loader_signals import is_probed, lost_to_workers_s, slowest_of, with_sharding
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import cores_per_rank, loaders_of, phase_s, steady_of, summaries_of
from lightning_perf.rules.thresholds import DEFAULT_PREFETCH, WAIT_MIN_SHARE
from lightning_perf.rules.trace_reading import Reading, complete_reading_of
from lightning_perf.rules.wording import duration, number_of, percent, spent_waiting
from lightning_perf.rules.worker_bounds import CORES


@rule("PD101", "starved-by-loader", line_of=("data_wait",))
def check(session: Session) -> Finding | None:
    predicted = predicted_steps(session)
    try:
        steady = steady_of(session) if predicted is None else predicted
    except Skip:
        if not session.windows:
            raise
        return _from_trace(session)
    device = steady.device
    share = device.starved_share if device is not None else _exposed_share(session, steady)
    if share < WAIT_MIN_SHARE:
        return None
    loaders = loaders_of(session)
    loader = slowest_of(session, loaders)
    plan = plan_workers(session, loader, steady, share)
    if lost_to_workers_s(session, steady, plan) > 0:
        return None  # PD103 applies: batches are faster without workers.
    if predicted is not None and plan.cost_more:
        return None  # PD103 or PD109 applies.
    n = steady.n_steps if predicted is None else None
    evidence = (
        fact(
            f"share of the time {'the device' if device else 'the host'} waits for data",
            share,
            "fraction",
            WAIT_MIN_SHARE,
            n,
        ),
        fact(f"time to make one batch ({plan.basis})", plan.batch_s, "s"),
        fact("step without waiting", plan.compute_s, "s", n=n),
        fact("num_workers", loader.num_workers),
        fact(f"maximum number of workers, limited by {plan.cap_basis}", plan.n_cap, "count"),
        *plan_evidence(plan),
        *_rank_evidence(session),
    )
    waiting = f"The device waits for data {percent(share)} of the time" if device else spent_waiting(share)
    made = duration(plan.batch_s)
    mean_s = phase_s(steady, "data_wait") / steady.n_span_steps if loader.num_workers == 0 else 0.0
    is_uneven = predicted is None and mean_s > plan.batch_s + plan.batch_s
    if is_uneven:
        made = f"{duration(mean_s)} on average, {made} in most steps"
    summary = f"{waiting}. Making a batch takes {made}, computing a step {duration(plan.compute_s)}."
    if plan.is_too_cheap:
        whole = "yield whole batches (batch_size=None)" if loader.is_iterable else "fetch whole batches by index"
        cheap = fix(f"{whole} instead of sample by sample, or use larger batches", "minutes")
        return make_finding(
            "info",
            f"{summary} Fetching a batch from a worker process takes longer{' than most' if is_uneven else ''}, so "
            "workers would not help.",
            evidence,
            fix("make the few slow batches cheaper, or spread their work over all steps", "hours")
            if is_uneven
            else cheap,
        )
    can_recommend = plan.n_workers > 0 and loader.num_workers is not None
    is_enough = can_recommend and plan.n_workers >= plan.n_needed
    seconds = steady.n_span_steps * plan.saved_high_s if can_recommend else share * steady.span_s
    return timed_finding(
        steady,
        summary=summary,
        evidence=evidence,
        prescriptions=(
            _dali(session, loader)
            if loader.n_threads is not None
            else (
                _workers(session, loader, len(loaders), plan) if can_recommend else None,
                None if is_enough else _cheaper(plan),
            )
        ),
        claims={"data_wait": min(seconds, share * steady.span_s)},
        low_s=steady.n_span_steps * plan.saved_low_s if can_recommend else 0.0,
        basis=_basis(plan) if can_recommend else "at most the data wait",
        confidence="high" if predicted is None and (device is not None or loader.num_workers == 0) else "medium",
        method=plan.method if can_recommend else "timed",
    )


def _rank_evidence(session: Session) -> tuple[Evidence, ...]:
    """Return the rank with the longest data wait, if the ranks differ."""
    summaries = summaries_of(session)
    if len(summaries) < 2:
        return ()
    most = max(summaries, key=lambda one: one.wait_share)
    if most.wait_share - min(one.wait_share for one in summaries) < WAIT_MIN_SHARE:
        return ()
    metric = f"data wait of rank {most.rank} (highest of {len(summaries)} ranks), share of its time"
    return (fact(metric, most.wait_share, "fraction", n=most.n_steps),)


def _basis(plan: WorkerPlan) -> str:
    if plan.method == "probed":
        tried = ", ".join(str(step.num_workers) for step in plan.steps)
        return f"loader probed with {tried} workers while another process computes like a step"
    n = number_of(max(1, plan.n_workers), "worker")
    return f"modeled: {duration(plan.batch_s)} per batch ({plan.basis}) on {n}"


def _exposed_share(session: Session, steady: StageTimes) -> float:
    """Return the host's data wait as a share; for a device without a clock, the part in which a trace shows it idle."""
    share = phase_s(steady, "data_wait") / steady.span_s
    for window in reversed(session.windows):
        trace = window.trace
        if trace is not None and trace.device is not None and trace.loader is not None and trace.loader.total_s > 0:
            return share * min(1.0, trace.loader.exposed_s / trace.loader.total_s)
    return share


def _workers(session: Session, loader: LoaderSettings, n_loaders: int, plan: WorkerPlan) -> Prescription:
    arguments: dict[str, object] = {"num_workers": plan.n_workers, "persistent_workers": True}
    if session.settings.trainer.accelerator == "cuda" or any(d.kind == "cuda" for d in session.machine.devices):
        arguments["pin_memory"] = True
    summary = f"set num_workers={plan.n_workers} (now {plan.n_now}) on the {loader.stage} loader"
    if n_loaders > 1:
        is_known = is_probed(session, loader)
        summary += f" (the slowest of {n_loaders}{'' if is_known else '; lightning-perf data names it'})"
    if plan.chosen is not None:
        summary += f": the fewest within 2 % of the best, about {duration(plan.chosen.step_s)} per step"
    refusal = loader.why_not_changed()
    if loader.is_iterable and loader.is_plain:  # a single worker yields each sample once
        summary = with_sharding(loader, plan.n_workers, summary)
    elif refusal and n_loaders == 1:
        summary += f", if {loader.class_name} accepts it" if loader.refusal is None else f"; {refusal}"
    can_apply = not refusal and n_loaders == 1
    return fix(
        summary,
        "one line" if can_apply else "minutes",
        treatment="loader-workers" if can_apply else "",
        loader_args=arguments if can_apply else {},
        code=f"{loader.call}(..., {', '.join(f'{key}={value}' for key, value in arguments.items())})",
    )


def _dali(session: Session, loader: LoaderSettings) -> Prescription:
    """Recommend more threads for a DALI pipeline; if each core has one, a deeper queue."""
    n_now, n_cores = loader.n_threads or 0, max(1, math.floor(cores_per_rank(session)))
    if n_now < n_cores:
        name, summary, value = "num_threads", f"(now {n_now}), one per core of this rank", n_cores
    else:
        depth = loader.prefetch_factor or DEFAULT_PREFETCH
        name, value = "prefetch_queue_depth", 2 * depth
        summary = f'(now {depth}), and decode on the GPU (device="mixed"): each core has a thread already'
    code = f"@pipeline_def(..., {name}={value})"
    return fix(f"where the DALI pipeline is built, set {name}={value} {summary}", "minutes", code=code)


def _cheaper(plan: WorkerPlan) -> Prescription:
    reason = f"use at most {number_of(plan.n_cap, 'worker')}, limited by {plan.cap_basis}"
    if plan.n_cap < 1 and plan.cap_basis == CORES:
        reason = "no core is left for workers"
    return fix(
        f"make samples cheaper or cache them ({reason})",
        "hours",
        code="# decode and resize once, store the result (e.g. torch.save or np.memmap), and load that in __getitem__",
    )


def _from_trace(session: Session) -> Finding | None:
    """Return the finding of a trace alone, which has no settings; waits that kernels hide are excluded.

    Raises Skip if the trace has no events of the device or of the loader.
    """
    reading = complete_reading_of(session)
    trace = reading.trace
    loader = required(trace.loader, "the trace has no fetches of a loader")
    prediction = reading.without("loader")
    exposed_s = reading.path_s("loader")
    if prediction is None or reading.share(exposed_s) < WAIT_MIN_SHARE:
        return None
    what_if, low_s, high_s = prediction
    who = "device" if trace.device is not None else "host"
    span = "step" if trace.steps else "trace"
    return reading.finding(
        summary=(
            f"The {who} waits for data {percent(reading.share(exposed_s))} of the time. Of {loader.n} fetches the "
            f"median takes {duration(loader.p50_s)}, the longest {duration(loader.max_s)}; without waiting the {span} "
            f"would take at least {duration(what_if.low_s)} instead of {duration(what_if.step_s)}."
        ),
        evidence=(
            reading.evidence(f"share of the time the {who} waits for data", exposed_s, WAIT_MIN_SHARE),
            reading.evidence("data wait of the host, including waits that kernels hide", loader.total_s),
            fact("time per fetch", loader.p50_s, "s", n=loader.n),
            fact("longest fetch", loader.max_s, "s", n=loader.n),
            fact("fetches that delay a step", loader.stalled_fraction, "fraction", n=loader.n),
        ),
        prescriptions=_at_least_workers(reading, loader, what_if.low_s),
        low_s=low_s,
        high_s=high_s,
        basis="at most the data wait; the step is limited by the remaining work of device and host",
        phases=("data_wait",),
        method="modeled",
        confidence="high" if trace.device is not None else "medium",
    )


def _at_least_workers(reading: Reading, loader: LoaderWait, compute_s: float) -> Prescription:
    """Recommend a worker for each batch that is made at the same time; a trace does not show how many are in use."""
    n_per_period = loader.n / reading.n_steps if reading.trace.steps else 1.0
    batch_s = loader.total_s / max(loader.n, 1)
    period_s = compute_s if reading.trace.steps else compute_s / max(loader.n, 1)
    n_workers = max(1, math.ceil(n_per_period * batch_s / period_s)) if period_s > 0 else 1
    # No code to paste: the new values depend on settings that the trace does not contain.
    workers = number_of(n_workers, "worker process", "worker processes")
    return fix(f"add at least {workers} to the loader, if there are enough cores", "one line")
