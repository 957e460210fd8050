"""PD107: one function makes samples slow."""

from __future__ import annotations

from lightning_perf.records import Finding, HotFunction, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import feeding_of
from lightning_perf.rules.loader_signals import (
    MIN_WAIT_SHARE,
    blamed,
    costliest,
    function_evidence,
    indexes_rows,
    is_bursty,
    is_transport_costly,
    is_waiting,
    place,
    sample_share,
    wait_evidence,
)
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.wording import duration, percent

# The project's catalogue: below it there is no single function to speed up.
MIN_FUNCTION_SHARE = 0.40
# A function is worth an hour where it can be made twice as fast; that is the lower end of the gain.
FASTER = 0.5

DOCS = """\
## What it measures
The loader probe profiles `__getitem__` in a process of its own and counts each moment for the innermost function of
your own code that was running, so that libraries and C code count for the function that called them. This rule fires
where the training waits for data and one function takes 40 % of that time or more.

## Why it costs
Workers divide the cost of a sample by their number and no more, and on the cores that the training needs as well. A
function that is faster saves on every core.

## Example
```python
def augment(image):
    for y in range(height):
        for x in range(width):  # a Python loop over pixels: a thousand times slower than numpy's
            image[y, x] = image[y, x] * 0.5
```

## Prescription
Where the time is spent in Python, replace loops by operations on whole arrays or tensors. Where it is spent in C, take
a faster library, do less (decode at the size needed), or do it once and store the result. What is done alike for every
sample can be done for the whole batch on the device, in `on_after_batch_transfer`.

## When it is wrong
Profiling slows calls of small functions down more than large ones; a sampling profiler is used for code that spends its
time in C. The lower end of the gain is that of a function twice as fast, the upper end that of none at all.

## Sources
The profiling lecture's case of a slow dataset found with cProfile and line_profiler; the project's catalogue for 40 %.
"""


def check(session: Session) -> Finding | None:
    """Asks whether one function takes most of making a sample."""
    feeding = feeding_of(session)
    probe, plan = feeding.probe, feeding.plan
    if feeding.share < MIN_WAIT_SHARE or plan.is_too_cheap or plan.cost_more:
        return None
    if is_waiting(probe) or is_bursty(probe) or indexes_rows(probe) or is_transport_costly(feeding):
        return None  # PD106, PD105, PD110, PD109
    function = costliest(probe, "getitem")
    if function is None:
        raise Skip(probe.missing.get("functions", "no function of the dataset was seen"))
    share = blamed(function)
    of_batch = share * sample_share(probe)
    if share < MIN_FUNCTION_SHARE or of_batch < MIN_FUNCTION_SHARE / 2:
        return None
    return timed_finding(
        feeding.stage,
        summary=(
            f"{percent(feeding.share)} of the time waits for data, and {place(function)} takes "
            f"{percent(share)} of making a sample. {_who(function)} computes: "
            f"{duration(feeding.batch_s * of_batch)} of the {duration(feeding.batch_s)} of a batch."
        ),
        evidence=(
            wait_evidence(feeding),
            *function_evidence(probe, "getitem"),
            fact("of a sample's time on a core", probe.getitem_cpu_fraction or 0.0, "fraction"),
            fact("found by", function.basis),
        ),
        prescriptions=(_prescription(function),),
        claims={"data_wait": feeding.saved_s(of_batch)},
        low_s=feeding.saved_s(FASTER * of_batch),
        basis="from the function twice as fast to the function gone; with the workers in use",
        confidence="medium" if feeding.is_predicted else "high",
        method="probed",
    )


def _who(function: HotFunction) -> str:
    return "Python itself" if function.kind == "python" else "C code that it calls"


def _prescription(function: HotFunction) -> Prescription:
    short = function.name.rsplit(".", 1)[-1]
    if function.kind == "python":
        summary = f"let {short} work on whole arrays instead of looping in Python, or store its result once"
        code = "# numpy or torch operations on whole arrays instead of a loop over their elements"
    else:
        summary = f"give {short} less to do or a faster library, do it on the device, or store its result once"
        code = "def on_after_batch_transfer(self, batch, dataloader_idx):\n    ...  # the same for the whole batch"
    return fix(summary, "hours", code=code)


RULE = Rule(code="PD107", name="slow-transform", category="data", docs=DOCS, check=check, explains=("PD101", "PD102"))
