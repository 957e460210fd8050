"""PD101: the training waits for its loader; how many workers would hide the loading."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, LoaderSettings, Prescription, Session, StageTimes
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_model import WorkerPlan, plan_workers
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.wording import duration, percent

CODE = "PD101"
NAME = "starved-by-loader"
CATEGORY = "data"

# XProf calls a training input-bound from 5 % of the step on; TraceML warns at 10 % and 20 %, as the table of
# severities does.
MIN_SHARE = 0.05

DOCS = """\
## What it measures
The share of the steady wall time that the device had nothing to do because the next batch was not there. Where the
device has no clock of its own (CPU), it is the time that the host was blocked in the loader's `next`.

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
The number of workers is the smallest `w` for which cost of a batch ÷ `w` is no more than the compute time of a step,
capped by the cores that a rank may use. On a single core no workers are prescribed: make samples cheaper, or cache
them. The lower end of the gain assumes that making samples computes and shares the cores with the training; the
upper end assumes that it waits for a disk or a network.

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
    steady = steady_of(session)
    device = steady.device
    share = device.starved_share if device is not None else phase_s(steady, "data_wait") / steady.span_s
    if share < MIN_SHARE:
        return None
    loaders = loaders_of(session)
    loader = loaders[0]
    wait_s = share * steady.span_s / steady.n_steps
    plan = plan_workers(session, loader, steady, wait_s)
    fetch = steady.fetch
    in_process_s = fetch.in_process_batch_s if fetch is not None else None
    if plan.n_now and fetch is not None and in_process_s is not None and in_process_s < fetch.wait_s.p50:
        return None  # The workers themselves are what costs: PD103.
    evidence = (
        Evidence(
            metric="share of the time " + ("the device is starved" if device else "the host waits for data"),
            value=share,
            unit="fraction",
            threshold=MIN_SHARE,
            n=steady.n_steps,
        ),
        Evidence(metric=f"time to make one batch ({plan.basis})", value=plan.batch_s, unit="s"),
        Evidence(metric="time of a step without waiting", value=plan.compute_s, unit="s", n=steady.n_steps),
        Evidence(metric="num_workers", value="unknown" if loader.num_workers is None else loader.num_workers),
        Evidence(metric="workers that the cores of this rank allow", value=plan.n_cap, unit="count"),
    )
    who = "the device waits for data" if device else "each step waits for data"
    summary = (
        f"{percent(share)} of {'the time ' if device else ''}{who}. A batch takes {duration(plan.batch_s)} to make, "
        f"a step computes for {duration(plan.compute_s)}."
    )
    if plan.is_too_cheap:
        return _too_cheap(summary, evidence)
    can_prescribe = plan.n_workers > 0 and loader.num_workers is not None
    prescriptions: tuple[Prescription, ...] = (_workers(session, loaders, plan),) if can_prescribe else ()
    if not can_prescribe or plan.n_workers < plan.n_needed:
        prescriptions += (_cheaper(plan),)
    seconds = steady.n_steps * plan.saved_high_s if can_prescribe else share * steady.span_s
    return timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        claims={"data_wait": min(seconds, share * steady.span_s)},
        low_s=_low_s(steady, plan) if can_prescribe else 0.0,
        basis=(
            f"model: a batch takes {duration(plan.batch_s)} ({plan.basis}) on {max(1, plan.n_workers)} workers; "
            "from a dataset that computes on shared cores to one that waits"
            if can_prescribe
            else "all of the waiting, if batches were made as fast as they are used"
        ),
        confidence="high" if device is not None or plan.n_now == 0 else "medium",
    )


def _low_s(steady: StageTimes, plan: WorkerPlan) -> float:
    return steady.n_steps * plan.saved_low_s


def _workers(session: Session, loaders: tuple[LoaderSettings, ...], plan: WorkerPlan) -> Prescription:
    loader = loaders[0]
    arguments: dict[str, object] = {"num_workers": plan.n_workers, "persistent_workers": True}
    if session.settings.trainer.accelerator == "cuda" or any(d.kind == "cuda" for d in session.machine.devices):
        arguments["pin_memory"] = True
    code = f"DataLoader(..., {', '.join(f'{key}={value}' for key, value in arguments.items())})"
    summary = f"set num_workers={plan.n_workers}"
    is_certain = loader.is_plain and not loader.is_iterable and len(loaders) == 1
    if loader.is_iterable:
        summary += ", once the IterableDataset shards itself by torch.utils.data.get_worker_info()"
    elif len(loaders) > 1:
        summary += f" on the slowest of the {len(loaders)} loaders"
    elif not loader.is_plain:
        summary += f", if {loader.class_name} takes it"
    return Prescription(
        treatment="loader-workers" if is_certain else "",
        summary=summary,
        safety="exact",
        effort="one line" if is_certain else "minutes",
        loader_args=arguments if is_certain else {},
        code=code,
    )


def _cheaper(plan: WorkerPlan) -> Prescription:
    reason = "one usable core leaves none for workers" if plan.n_cap < 1 else f"the cores allow {plan.n_cap} workers"
    return Prescription(
        treatment="",
        summary=f"make samples cheaper or cache them ({reason})",
        safety="exact",
        effort="hours",
        code="# decode and resize once, store the result (e.g. torch.save or np.memmap), and load that in __getitem__",
    )


def _too_cheap(summary: str, evidence: tuple[Evidence, ...]) -> Finding:
    """Workers would cost more than the batch; what is left to win is small."""
    return Finding(
        code=CODE,
        name=NAME,
        category=CATEGORY,
        severity="info",
        summary=summary + " That is less than a worker process needs to hand a batch over, so workers would not help.",
        evidence=evidence,
        prescriptions=(
            Prescription(
                treatment="",
                summary="fetch whole batches by index instead of sample by sample, or train with larger batches",
                safety="exact",
                effort="minutes",
            ),
        ),
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
