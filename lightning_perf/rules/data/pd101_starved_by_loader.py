"""PD101: the training waits for its loader; how many workers would hide the loading."""

from __future__ import annotations

import math

from lightning_perf.records import Evidence, Finding, LoaderSettings, Prescription, Session, StageTimes
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import CORES, WorkerPlan, plan_evidence, plan_workers, predicted_steps
from lightning_perf.rules.loader_signals import in_process_of
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.trace_signals import (
    Reading,
    is_blind,
    path_s,
    reading_of,
    share_evidence,
    trace_finding,
    without,
)
from lightning_perf.rules.wording import duration, number_of, percent

# XProf calls a training input-bound from 5 % of the step on; TraceML warns at 10 % and 20 %, as the table of
# severities does.
MIN_SHARE = 0.05

DOCS = """\
## What it measures
The share of the steady wall time that the device had nothing to do because the next batch was not there. Where the
device has no clock of its own (CPU), it is the time that the host was blocked in the loader's `next`. Of a
trace without timed steps it is the waiting during which the device had nothing to do.

## Why it costs
While the loader makes a batch, nothing is trained. With `num_workers=0` every batch is made between two steps; worker
processes make them during the steps instead.

## Example
```python
class Images(Dataset):
    def __getitem__(self, index):
        return augment(decode(self.paths[index]))  # 5 ms a sample

DataLoader(Images(), batch_size=32)  # 160 ms a batch, made while the model waits
```

## Prescription
Where the loader was probed (by default at the end of a `fit` of 50 s or more that waited for data over 20 % of its
time), the number of workers is the fewest whose step is within 2 % of the best: the probe runs the loader with 0, 1, 2,
4 … workers beside a process that computes as long as the training's step does, on as many cores, and measures the step.
The expected speedup is the interval of what it measured. Samples that wait rather than compute may have more workers
than cores; `/dev/shm` limits them as well.

Otherwise it is the smallest `w` for which cost of a batch ÷ `w` is no more than the compute time of a step, capped by
the cores that a rank may use. The lower end of the speedup assumes that making samples computes and shares the cores
with the training; the upper end assumes that it waits for a disk or a network. On a single core no workers are
recommended: make samples cheaper, or cache them.

## When it is wrong
A transform that already uses several threads gains less from workers, which run one thread each. A disk that is
saturated does not read faster for more workers. An `IterableDataset` has to shard itself by
`torch.utils.data.get_worker_info()`, or each worker repeats all of it.

## Sources
XProf's input-bound classification; TraceML's input-bound thresholds; the profiling lecture's advice on data loading
and its ResNet-50 case (1.4x by workers); a case study of 40 % in `DataLoader.__next__` that became 2x.
"""


def check(session: Session) -> Finding | None:
    """Compares the starved share with the threshold and asks the worker model what would help."""
    predicted = predicted_steps(session)
    try:
        steady = steady_of(session) if predicted is None else predicted
    except Skip:
        if not session.windows:
            raise
        return _in_a_trace(session)
    device = steady.device
    share = device.starved_share if device is not None else _exposed_share(session, steady)
    if share < MIN_SHARE:
        return None
    loaders = loaders_of(session)
    loader = _loader(session, loaders)
    wait_s = share * steady.span_s / steady.n_steps
    plan = plan_workers(session, loader, steady, wait_s)
    fetch = steady.fetch
    in_process_s, _ = in_process_of(session, steady)
    if plan.n_now and fetch is not None and in_process_s is not None and in_process_s < fetch.wait_s.p50:
        return None  # The workers themselves are what costs: PD103.
    if predicted is not None and plan.cost_more:
        return None  # The same without a training: PD103, PD109.
    evidence = (
        fact(
            "share of the time " + ("the device is starved" if device else "the host waits for data"),
            share,
            "fraction",
            MIN_SHARE,
            steady.n_steps if predicted is None else None,
        ),
        fact(f"time to make one batch ({plan.basis})", plan.batch_s, "s"),
        fact("time of a step without waiting", plan.compute_s, "s", n=steady.n_steps),
        fact("num_workers", "unknown" if loader.num_workers is None else loader.num_workers),
        fact(f"most workers, by {plan.cap_basis}", plan.n_cap, "count"),
        *plan_evidence(plan),
        *_rank_evidence(session),
    )
    who = "the device waits for data" if device else "each step waits for data"
    summary = (
        f"{percent(share)} of {'the time ' if device else ''}{who}. A batch takes {duration(plan.batch_s)} to make, "
        f"a step computes for {duration(plan.compute_s)}."
    )
    if plan.is_too_cheap:
        return _too_cheap(summary, evidence)
    can_prescribe = plan.n_workers > 0 and loader.num_workers is not None
    prescriptions: tuple[Prescription, ...] = (_workers(session, loader, len(loaders), plan),) if can_prescribe else ()
    if not can_prescribe or plan.n_workers < plan.n_needed:
        prescriptions += (_cheaper(plan),)
    seconds = steady.n_steps * plan.saved_high_s if can_prescribe else share * steady.span_s
    low_s = steady.n_steps * plan.saved_low_s if can_prescribe else 0.0
    return timed_finding(
        steady,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        claims={"data_wait": min(seconds, share * steady.span_s)},
        low_s=low_s,
        basis=_basis(plan) if can_prescribe else "all of the waiting, if batches were made as fast as they are used",
        confidence="high" if predicted is None and (device is not None or loader.num_workers == 0) else "medium",
        method=plan.method if can_prescribe else "timed",
    )


def _rank_evidence(session: Session) -> tuple[Evidence, ...]:
    """The rank that waits most for its data, where the ranks differ."""
    summaries = session.ranks.summaries if session.ranks is not None else ()
    if len(summaries) < 2:
        return ()
    most = max(summaries, key=lambda one: one.wait_share)
    if most.wait_share - min(one.wait_share for one in summaries) < MIN_SHARE:
        return ()
    metric = f"share of its time that rank {most.rank} waits for data, the most of {len(summaries)}"
    return (fact(metric, most.wait_share, "fraction", n=most.n_steps),)


def _basis(plan: WorkerPlan) -> str:
    if plan.method == "probed":
        tried = ", ".join(str(step.num_workers) for step in plan.steps)
        return f"the loader probed with {tried} workers beside as much computing as the step has"
    made = f"a batch takes {duration(plan.batch_s)} ({plan.basis})"
    n = max(1, plan.n_workers)
    return f"model: {made} on {number_of(n, 'worker')}; from a dataset that computes on shared cores to one that waits"


def _exposed_share(session: Session, steady: StageTimes) -> float:
    """The host's waiting; of a device without a clock of its own the part that a profiler window saw it idle in."""
    share = phase_s(steady, "data_wait") / steady.span_s
    for window in reversed(session.windows):
        trace = window.trace
        if trace is not None and trace.device is not None and trace.loader is not None and trace.loader.total_s > 0:
            return share * min(1.0, trace.loader.exposed_s / trace.loader.total_s)
    return share


def _in_a_trace(session: Session) -> Finding | None:
    """The same from a profiler window alone: no settings, and waits that kernels hide are not charged."""
    reading = reading_of(session)
    trace, loader = reading.trace, reading.trace.loader
    if is_blind(trace):
        raise Skip(trace.missing.get("device", "the trace does not show what the device did"))
    if loader is None:
        raise Skip("the trace holds no fetches of a loader")
    gone = without(reading, "loader")
    exposed_s = path_s(trace, "loader")
    if gone is None or reading.share(exposed_s) < MIN_SHARE:
        return None
    what_if, low_s, high_s = gone
    who = "the device waits for data" if trace.device is not None else "each step waits for data"
    span = f"a {duration(what_if.step_s)} step" if trace.steps else f"{duration(what_if.step_s)}"
    return trace_finding(
        reading,
        summary=(
            f"{percent(reading.share(exposed_s))} of the time {who}. {loader.n} fetches, the median takes "
            f"{duration(loader.p50_s)}, the longest {duration(loader.max_s)}; without waiting {span} would take "
            f"{duration(what_if.low_s)} to {duration(what_if.high_s)}."
        ),
        evidence=(
            share_evidence(reading, f"share of the time {who}", exposed_s, MIN_SHARE),
            share_evidence(reading, "host waiting for data, waits behind kernels included", loader.total_s),
            fact("time of a fetch", loader.p50_s, "s", n=loader.n),
            fact("longest fetch", loader.max_s, "s", n=loader.n),
            fact("fetches that stall a step", loader.stalled_fraction, "fraction", n=loader.n),
        ),
        prescriptions=(_more_workers(reading, what_if.low_s),),
        low_s=low_s,
        high_s=high_s,
        method="timed",
        basis="from half of the waiting gone to all of it, but no shorter than what device and host still need",
        phases=("data_wait",),
        confidence="high" if trace.device is not None else "medium",
    )


def _more_workers(reading: Reading, compute_s: float) -> Prescription:
    """As many workers as batches have to be made at once; a trace does not tell how many there are."""
    loader = reading.trace.loader
    n_per_period = loader.n / reading.n_steps if loader is not None and reading.trace.steps else 1.0
    batch_s = loader.total_s / max(loader.n, 1) if loader is not None else 0.0
    period_s = compute_s if reading.trace.steps else compute_s / max(loader.n if loader is not None else 1, 1)
    n_workers = max(1, math.ceil(n_per_period * batch_s / period_s)) if period_s > 0 else 1
    arguments: dict[str, object] = {"num_workers": n_workers, "persistent_workers": True}
    if reading.trace.device is not None:
        arguments["pin_memory"] = True
    asked = ", ".join(f"{key}={value}" for key, value in arguments.items())
    return fix(
        f"load in worker processes: {n_workers} or more beyond those in use, as far as there are cores",
        "one line",
        code=f"DataLoader(..., {asked})  # added to those in use",
    )


def _loader(session: Session, loaders: tuple[LoaderSettings, ...]) -> LoaderSettings:
    """The one that was probed, which is the costliest; else the first."""
    probe = session.loader_probe
    index = probe.index if probe is not None and probe.stage == "train" else None
    return next((each for each in loaders if each.index == index), loaders[0])


def _workers(session: Session, loader: LoaderSettings, n_loaders: int, plan: WorkerPlan) -> Prescription:
    arguments: dict[str, object] = {"num_workers": plan.n_workers, "persistent_workers": True}
    if session.settings.trainer.accelerator == "cuda" or any(d.kind == "cuda" for d in session.machine.devices):
        arguments["pin_memory"] = True
    code = f"DataLoader(..., {', '.join(f'{key}={value}' for key, value in arguments.items())})"
    summary = f"set num_workers={plan.n_workers}"
    if plan.chosen is not None:
        summary += f", the fewest within 2 % of the best: a step of about {duration(plan.chosen.step_s)}"
    is_certain = loader.is_plain and not loader.is_iterable and n_loaders == 1
    if loader.is_iterable:
        summary += ", once the IterableDataset shards itself by torch.utils.data.get_worker_info()"
    elif n_loaders > 1:
        summary += f" on the slowest of the {n_loaders} loaders"
    elif not loader.is_plain:
        summary += f", if {loader.class_name} takes it"
    return fix(
        summary,
        "one line" if is_certain else "minutes",
        treatment="loader-workers" if is_certain else "",
        loader_args=arguments if is_certain else {},
        code=code,
    )


def _cheaper(plan: WorkerPlan) -> Prescription:
    reason = f"{plan.cap_basis}: {number_of(plan.n_cap, 'worker')} at most"
    if plan.n_cap < 1 and plan.cap_basis == CORES:
        reason = "less than two usable cores for this rank leave none for workers"
    return fix(
        f"make samples cheaper or cache them ({reason})",
        "hours",
        code="# decode and resize once, store the result (e.g. torch.save or np.memmap), and load that in __getitem__",
    )


def _too_cheap(summary: str, evidence: tuple[Evidence, ...]) -> Finding:
    """Workers would cost more than the batch; what is left to win is small."""
    return unsigned_finding(
        severity="info",
        summary=summary + " That is less than a worker process needs to hand a batch over, so workers would not help.",
        evidence=evidence,
        prescriptions=(
            fix("fetch whole batches by index instead of sample by sample, or train with larger batches", "minutes"),
        ),
    )


RULE = Rule(code="PD101", name="starved-by-loader", category="data", docs=DOCS, check=check)
