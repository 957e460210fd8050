"""PD303: the device waits for the host to launch its next small kernel."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session, TraceRecord
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.trace_signals import (
    MIN_LATE_SHARE,
    compile_prescription,
    device_reading_of,
    idle_limit_s,
    is_launch_bound,
    launching_s,
    place,
    share_evidence,
    trace_finding,
)
from lightning_perf.rules.wording import duration, percent

CODE = "PD303"
NAME = "launch-bound"
CATEGORY = "compute"

# A launch takes the host 5 to 10 us and the operator around it some times that: kernels shorter than 20 us (median)
# are over before the next one is there.
MAX_MEDIAN_KERNEL_S = 20e-6

DOCS = """\
## What it measures
In a profiler window, the time in which the device was idle because a kernel was launched too late, without waiting for
data, for the device or for the driver's memory; and how long the median kernel runs.

## Why it costs
Every operator costs the host some ten microseconds of Python, dispatch and launch. Where kernels are shorter than
that, the device finishes each before the next arrives, however fast it is.

## Example
```python
for layer in self.layers:      # 100 layers on a batch of 4:
    x = layer(x)               # thousands of kernels of 5 us, each 20 us apart
```

## Prescription
Fewer, larger kernels: `torch.compile(mode="reduce-overhead")` fuses them and replays them as a CUDA graph; a larger
batch gives each more work; a fused optimizer replaces thousands.

## When it is wrong
The profiler slows the host down, with stacks or memory profiling by a multiple: the time without it has smaller gaps.
The number of kernels alone says nothing: it is the device's idle time that is charged.

## Sources
The profiling lecture and the case study on launches (5 to 10 us each); HTA's idle breakdown (the host was late);
60 kernels in 4.4 ms of a small BERT on an H100, idle for 92 %.
"""


def check(session: Session) -> Finding | None:
    """Charges late launches with the device's idle time, and asks whether kernels are short."""
    reading, device = device_reading_of(session)
    trace = reading.trace
    kernels = trace.kernels
    if kernels is None or kernels.median_s is None or kernels.median_s >= MAX_MEDIAN_KERNEL_S:
        return None
    if not is_launch_bound(trace):
        return None
    late_s = launching_s(trace)
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(reading.share(late_s))} of the time the device waits for the host to launch kernels. "
            f"{kernels.n_per_step:.0f} kernels {'a step' if trace.steps else 'in the trace'}, the median runs for "
            f"{duration(kernels.median_s)}{_where(trace)}."
        ),
        evidence=(
            share_evidence(reading, "device idle because launches were late", late_s, MIN_LATE_SHARE),
            Evidence(
                metric="median kernel",
                value=kernels.median_s,
                unit="s",
                threshold=MAX_MEDIAN_KERNEL_S,
                n=trace.n_kernels,
            ),
            Evidence(metric="kernels " + ("a step" if trace.steps else "in the trace"), value=kernels.n_per_step),
            share_evidence(reading, "device busy", device.busy_s),
        ),
        prescriptions=(
            compile_prescription(" with CUDA graphs"),
            Prescription(
                treatment="batch-size",
                summary="give each kernel more work: a larger batch",
                safety="semantics",
                effort="minutes",
            ),
        ),
        low_s=0.0,
        high_s=min(late_s, idle_limit_s(reading)),
        basis="at most the time in which the device waited for launches; what it has to compute stays",
        confidence="medium" if trace.has_stacks else "high",
    )


def _where(trace: TraceRecord) -> str:
    if not trace.code_sites:
        return ""
    site = max(trace.code_sites, key=lambda site: site.n_operators)
    return f"; most are launched by {place(site.site, site.function)}"


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
