"""The finding of training that waits for its loader, from a trace without a session."""

import math

from lightning_perf.records import Finding, LoaderWait, Prescription, Session

from .findings import fact, fix
from .rule import required
from .thresholds import WAIT_MIN_SHARE
from .trace_reading import Reading, complete_reading_of
from .wording import duration, number_of, percent


def starved_in_trace(session: Session) -> Finding | None:
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
        prescriptions=_more_workers(reading, loader, what_if.low_s),
        low_s=low_s,
        high_s=high_s,
        basis="at most the data wait; the step is limited by the remaining work of device and host",
        phases=("data_wait",),
        method="modeled",
        confidence="high" if trace.device is not None else "medium",
    )


def _more_workers(reading: Reading, loader: LoaderWait, compute_s: float) -> Prescription:
    """Recommend as many workers as batches must be made at the same time; a trace does not show how many are in use."""
    n_per_period = loader.n / reading.n_steps if reading.trace.steps else 1.0
    batch_s = loader.total_s / max(loader.n, 1)
    period_s = compute_s if reading.trace.steps else compute_s / max(loader.n, 1)
    n_workers = max(1, math.ceil(n_per_period * batch_s / period_s)) if period_s > 0 else 1
    # No code to paste: the new values depend on settings that the trace does not contain.
    workers = number_of(n_workers, "worker process", "worker processes")
    return fix(f"add at least {workers} to the loader, if there are enough cores", "one line")
