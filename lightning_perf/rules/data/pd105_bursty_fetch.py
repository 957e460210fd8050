"""PD105: batches come in bursts, with a wait once every round of the workers."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_model import SLACK
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.severity import LOW_SHARE
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.wording import percent

CODE = "PD105"
NAME = "bursty-fetch"
CATEGORY = "data"

# Waits that differ by less than half are ordinary scatter.
MIN_P90_OVER_P50 = 1.5
# Most waits must follow the last at the same distance; chance alone spreads them over as many as there are workers.
MIN_BURST_FRACTION = 0.5
MIN_SHARE = LOW_SHARE
# Twice the batches ahead smooth a burst of the present length; torch's default is 2 a worker.
PREFETCH_GROWTH = 2
DEFAULT_PREFETCH = 2

DOCS = """\
## What it measures
How unevenly batches arrive: the 90th percentile of the wait over its median, and whether waits recur once every
`num_workers` steps.

## Why it costs
Workers take turns. When one is late, the batches of the others stand ready behind it, since batches are handed out in
order: one slow batch stops the training although others are finished.

## Example
```python
def __getitem__(self, index):
    return decode(self.files[index])  # most files 1 MB, some 100 MB
```

## Prescription
A larger `prefetch_factor`, so that slow batches are begun earlier; samples of more even cost.

## When it is wrong
Workers that are too slow on average also wait once a round; then more workers or cheaper samples help, not more
prefetching (PD101). Where the cost of a batch was measured, that case is left out here.

## Sources
The documentation of `torch.utils.data.DataLoader` on order and `prefetch_factor`.
"""


def check(session: Session) -> Finding | None:
    """Looks for waits that recur with the workers' round."""
    steady = steady_of(session)
    loader = loaders_of(session)[0]
    fetch = steady.fetch
    if loader.num_workers is None or fetch is None:
        raise Skip("the number of workers is not known" if loader.num_workers is None else "no fetch was seen")
    wait_s = phase_s(steady, "data_wait")
    share = wait_s / steady.span_s
    if loader.num_workers < 2 or share < MIN_SHARE:
        return None
    if fetch.burst_period is None or fetch.burst_fraction is None:
        raise Skip("fewer than 8 waits were seen")
    # Without a ratio the median wait is 0: most batches were there, and what waits there are stand out from them.
    is_uneven = fetch.p90_over_p50 is None or fetch.p90_over_p50 >= MIN_P90_OVER_P50
    is_in_rounds = fetch.burst_period == loader.num_workers and fetch.burst_fraction >= MIN_BURST_FRACTION
    if not (is_uneven and is_in_rounds):
        return None
    compute_s = max(0.0, steady.step_s.mean - wait_s / steady.n_steps)
    in_process_s = fetch.in_process_batch_s
    if in_process_s is not None and in_process_s > (1 + SLACK) * loader.num_workers * compute_s:
        return None  # Too few workers for the work: PD101.
    prefetch_factor = PREFETCH_GROWTH * (loader.prefetch_factor or DEFAULT_PREFETCH)
    return timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(share)} of the time waits for batches that come in bursts. A wait follows the last one "
            f"{fetch.burst_period} steps later in {percent(fetch.burst_fraction)} of the cases, as many as there are "
            "workers."
        ),
        evidence=(
            Evidence(
                metric="90th percentile of the wait over its median",
                value="the median is 0" if fetch.p90_over_p50 is None else fetch.p90_over_p50,
                unit="" if fetch.p90_over_p50 is None else "ratio",
                threshold=MIN_P90_OVER_P50,
                n=fetch.n,
            ),
            Evidence(
                metric="waits that recur with the workers' round",
                value=fetch.burst_fraction,
                unit="fraction",
                threshold=MIN_BURST_FRACTION,
            ),
            Evidence(
                metric="share of the time waiting for data",
                value=share,
                unit="fraction",
                threshold=MIN_SHARE,
                n=steady.n_steps,
            ),
        ),
        prescriptions=(
            Prescription(
                treatment="loader-prefetch" if loader.is_plain else "",
                summary=f"set prefetch_factor={prefetch_factor}",
                safety="exact",
                effort="one line",
                loader_args={"prefetch_factor": prefetch_factor} if loader.is_plain else {},
                code=f"DataLoader(..., num_workers={loader.num_workers}, prefetch_factor={prefetch_factor})",
            ),
            Prescription(
                treatment="", summary="make samples of more even cost", safety="exact", effort="hours", code=""
            ),
        ),
        claims={"data_wait": wait_s},
        low_s=0.0,
        basis="from nothing (workers too slow on average) to all of the waiting",
        confidence="medium",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
