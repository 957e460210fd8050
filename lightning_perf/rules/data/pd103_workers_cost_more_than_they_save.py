"""PD103: getting a batch from a worker takes longer than making it."""

from __future__ import annotations

from lightning_perf.records import Finding, LoaderSettings, Method, Prescription, Session, StageTimes
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import feeding_of
from lightning_perf.rules.loader_signals import in_process_of, is_bursty, is_transport_costly, is_waiting
from lightning_perf.rules.parts import fact
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.severity import LOW_SHARE
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.wording import duration

# A finding is worth its line from the share at which severities begin.
MIN_SHARE = LOW_SHARE
# A few batches made without workers are measured, beside workers that go on; half of what they promise is sure.
LOW_FRACTION = 0.5

DOCS = """\
## What it measures
The median time to fetch a batch from worker processes, and what starting them adds at each epoch, against the measured
time to make the same batch in one process without workers.

## Why it costs
A worker sends each batch through a queue and shared memory, and the main process takes it apart again. For small
samples that takes longer than making the batch. Workers that are not persistent are started anew each epoch.

## Example
```python
DataLoader(TensorDataset(x, y), batch_size=64, num_workers=4)  # rows of a tensor: nothing to do in a worker
```

## Prescription
`num_workers=0`.

## When it is wrong
Where the cost varies much from batch to batch, the median of a few measured batches may miss the expensive ones. On a
machine that was busy with other work while the batch was measured, both figures are too high.

## Sources
Lightning issue 17410 (tiny data trains faster without workers).
"""


def check(session: Session) -> Finding | None:
    """Compares the cost with workers to the measured cost without."""
    if session.steady is None and session.loader_probe is not None:
        return _predicted(session)
    steady = steady_of(session)
    loader = loaders_of(session)[0]
    fetch = steady.fetch
    if loader.num_workers is None:
        raise Skip("the number of workers is not known")
    if loader.num_workers == 0:
        return None
    in_process_s, basis = in_process_of(session, steady)
    if fetch is None or in_process_s is None:
        raise Skip(f"the cost of a batch without workers: {basis}")
    if _has_another_cause(session):
        return None
    if fetch.wait_s.p50 <= in_process_s:
        return None  # they save: what costs is starting them, PD104
    restart_s = 0.0 if loader.persistent_workers else phase_s(steady, "epoch_boundary")
    with_workers_s = fetch.wait_s.p50 + restart_s / steady.n_steps
    saved_s = steady.n_steps * (with_workers_s - in_process_s)
    if saved_s < MIN_SHARE * steady.span_s:
        return None
    from_boundary_s = min(saved_s, restart_s)
    return _finding(
        steady,
        loader,
        with_workers_s,
        in_process_s,
        basis,
        claims={"data_wait": saved_s - from_boundary_s, "epoch_boundary": from_boundary_s},
        # Without the part at the epoch's boundary, some of which stays without workers too.
        low_s=LOW_FRACTION * max(0.0, saved_s - restart_s),
    )


def _predicted(session: Session) -> Finding | None:
    """The same where no step was timed, from the probe's curve and the model's own step."""
    feeding = feeding_of(session)
    plan = feeding.plan
    without = next((step for step in plan.steps if step.num_workers == 0), None)
    if plan.n_now == 0 or plan.now is None or without is None or _has_another_cause(session):
        return None
    saved_s = feeding.stage.n_steps * (plan.now.step_s - without.step_s)
    if saved_s < MIN_SHARE * feeding.stage.span_s:
        return None
    return _finding(
        feeding.stage,
        feeding.loader,
        plan.now.fetch_s,
        plan.batch_s,
        plan.basis,
        claims={"data_wait": saved_s},
        low_s=0.0,
        method="probed",
    )


def _finding(
    stage: StageTimes,
    loader: LoaderSettings,
    with_workers_s: float,
    in_process_s: float,
    basis: str,
    claims: dict[str, float],
    low_s: float,
    method: Method = "timed",
) -> Finding:
    return timed_finding(
        stage,
        summary=(
            f"Worker processes cost {duration(with_workers_s)} a batch where making it takes {duration(in_process_s)}. "
            "The samples are too cheap to be made elsewhere."
        ),
        evidence=(
            fact("time a batch with workers", with_workers_s, "s"),
            fact(f"time to make a batch without workers ({basis})", in_process_s, "s"),
            fact("num_workers", loader.num_workers or 0),
        ),
        prescriptions=(
            Prescription(
                treatment="loader-workers" if loader.is_plain else "",
                summary="set num_workers=0",
                safety="exact",
                effort="one line",
                # Without workers a DataLoader refuses persistent_workers=True.
                loader_args={"num_workers": 0, "persistent_workers": False} if loader.is_plain else {},
                code="DataLoader(..., num_workers=0)",
            ),
        ),
        claims=claims,
        low_s=low_s,
        method=method,
        basis="half to all of what a fetch and the restarts of workers took longer than making the batch",
        confidence="medium",
    )


def _has_another_cause(session: Session) -> bool:
    """Whether the probe saw batches that are costly to move (PD109), uneven (PD105) or waited for (PD106)."""
    probe = session.loader_probe
    if probe is None or probe.getitem is None:
        return False
    return is_waiting(probe) or is_bursty(probe) or is_transport_costly(feeding_of(session))


RULE = Rule(code="PD103", name="workers-cost-more-than-they-save", category="data", docs=DOCS, check=check)
