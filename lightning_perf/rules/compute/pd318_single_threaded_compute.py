"""PD318: a CPU training that uses fewer threads than it has cores."""

from __future__ import annotations

import math

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_from, replayed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import computing_s, cores_per_rank, is_cpu_run, steady_of
from lightning_perf.rules.wording import percent

# Threads can only speed up computing, so it must be most of the step; and an operation must be long enough to be split:
# torch splits work from some ten thousand elements on, which steps below about 5 ms seldom have.
MIN_COMPUTE_SHARE = 0.50
MIN_COMPUTE_S = 5e-3

DOCS = """\
## What it measures
torch's number of threads against the cores that this rank may use, less those that loader workers keep busy. The
operators of one step are then replayed with both numbers of threads.

## Why it costs
On a CPU, matrix products and large element-wise operations are split over threads. Unused cores stay idle.

## Example
```bash
OMP_NUM_THREADS=1 python train.py  # left over from a multi-process launch
```

## Prescription
`torch.set_num_threads(n)` or `OMP_NUM_THREADS`, with n = usable cores ÷ ranks on the node.

## When it is wrong
Models of small operations gain nothing, or lose: threads have to meet after each operation. Cores may be hyper-threads
of the same physical core. Without a replay no speedup is promised.

## Sources
The documentation of `torch.set_num_threads`.
"""


def check(session: Session) -> Finding | None:
    """Report unused cores unless a replay shows that more threads gain nothing."""
    return replayed_finding(session, _diagnosis(session))


def _diagnosis(session: Session) -> Diagnosis | None:
    steady = steady_of(session)
    if not is_cpu_run(session):
        return None
    n_threads = session.settings.torch.n_threads
    if not n_threads:
        raise Skip("torch's number of threads is not known")
    n_workers = max((each.num_workers or 0 for each in session.settings.loaders if each.stage == "train"), default=0)
    cores = cores_per_rank(session)
    if session.machine.n_physical_cores is not None:
        # Two threads on one physical core share its arithmetic units; torch's own default counts physical cores too.
        cores = min(cores, session.machine.n_physical_cores / session.machine.local_world_size)
    n_wanted = math.floor(cores) - n_workers
    compute = {name: computing_s(session, steady, name) for name in ("forward", "backward", "optimizer")}
    compute_s = sum(compute.values())
    each_s = compute_s / steady.n_steps
    if n_threads >= n_wanted or compute_s < MIN_COMPUTE_SHARE * steady.span_s or each_s < MIN_COMPUTE_S:
        return None
    omp = session.settings.torch.omp_num_threads
    return Diagnosis(
        f"{percent(compute_s / steady.span_s)} of training time is computing on {n_threads} of {n_wanted} cores"
        + (f" (OMP_NUM_THREADS={omp})" if omp else ""),
        (
            fact("threads of torch", n_threads, "count", n_wanted),
            fact(
                "share of the time computing", compute_s / steady.span_s, "fraction", MIN_COMPUTE_SHARE, steady.n_steps
            ),
            fact("computing per step", each_s, "s", MIN_COMPUTE_S, steady.n_steps),
        ),
        fix(
            f"use {n_wanted} threads (now {n_threads})",
            "one line",
            "numerics",
            treatment="threads",
            code=f"torch.set_num_threads({n_wanted})",
            value=n_wanted,
        ),
        f"{n_wanted} threads run its operators",
        replayed_as=f"threads={n_wanted}",
        phases=("forward", "backward", "optimizer"),
    )


RULE = Rule(
    code="PD318",
    name="single-threaded-compute",
    category="compute",
    docs=DOCS,
    check=check,
    hypothesis=hypothesis_from(_diagnosis),
)
