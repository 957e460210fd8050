"""PD115: workers wait for one another."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import feeding_of
from lightning_perf.rules.loader_signals import (
    MIN_SAME_LINE_SHARE,
    MIN_WAIT_SHARE,
    is_bursty,
    is_serialized,
    max_serialized_speedup,
    serialized_speedup,
    wait_evidence,
)
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.wording import spent_waiting

DOCS = """\
## What it measures
The loader's probe runs the loader with several numbers of workers. This rule fires where the training waits for data,
making a sample waits for more than half of its time, several workers deliver no more than if half of a sample
was made one after the other (2 workers 1.33 times what one process does, 4 workers 1.6 times), and the workers spend at
least half of their time in the same line.

## Why it costs
Workers that wait for a lock, for one connection or for a server that answers one request at a time take turns: however
many there are, one of them makes progress.

## Example
```python
def __getitem__(self, index):
    with self.lock:  # one for all workers
        return self.file.read_sample(index)
```

## Prescription
Let every worker open a handle or connection of its own (in `worker_init_fn`, or at the first sample), and hold locks
only while shared state changes. Where a server is the limit, fetch several samples per request, or copy the data to a
local disk. More workers do not help.

## When it is wrong
A disk or network at its full bandwidth looks the same: workers then wait in the same line as well, and only fewer bytes
help (PD106).

## Sources
h5py's documentation: each process has to open its own file, and one process serializes calls with a global lock
(https://docs.h5py.org/en/stable/threads.html); Amdahl's law for the limit.
"""


def check(session: Session) -> Finding | None:
    """Compare the throughput of several workers with that of one process."""
    feeding = feeding_of(session)
    probe = feeding.probe
    if feeding.share < MIN_WAIT_SHARE:
        return None
    speedup = serialized_speedup(probe)
    if speedup is None:
        raise Skip(probe.missing.get("curve", "the loader was not probed with several workers"))
    if not is_serialized(probe) or is_bursty(probe):
        return None
    n_workers, low, high = speedup
    line = next(iter(probe.worker_lines), None)
    waited = 1.0 - (probe.getitem_cpu_fraction or 0.0)
    return timed_finding(
        feeding.stage,
        summary=(
            f"{spent_waiting(feeding.share)}; {n_workers} workers deliver {_times(low, high)} the batches of "
            "one process: they wait for one another."
        ),
        evidence=(
            wait_evidence(feeding),
            fact(
                f"throughput of {n_workers} workers ÷ that of one process, at most",
                high,
                "ratio",
                max_serialized_speedup(n_workers),
            ),
            fact("blocked ÷ time of making a sample", waited, "fraction"),
            *(
                (
                    fact(
                        "time of all workers in one line",
                        line.share,
                        "fraction",
                        MIN_SAME_LINE_SHARE,
                        line.n_samples,
                    ),
                )
                if line is not None
                else ()
            ),
        ),
        prescriptions=(
            fix(
                "open a file handle or connection per worker, and hold no lock while reading",
                "minutes",
                code=(
                    "def open_own_handle(worker_id):\n    get_worker_info().dataset.file = open(path, 'rb')\n\n"
                    "DataLoader(..., worker_init_fn=open_own_handle)  # not more workers"
                ),
            ),
        ),
        claims={"data_wait": feeding.saved_s(waited)},
        low_s=0.0,
        basis="at most the waiting of samples, if workers no longer took turns",
        confidence="high" if line is not None else "medium",
    )


def _times(low: float, high: float) -> str:
    ends = dict.fromkeys((f"{low:.1f}", f"{high:.1f}"))
    return f"{'–'.join(ends)}x"


RULE = Rule(
    code="PD115",
    name="serialized-workers",
    category="data",
    docs=DOCS,
    check=check,
    explains=("PD101", "PD102", "PD106"),
)
