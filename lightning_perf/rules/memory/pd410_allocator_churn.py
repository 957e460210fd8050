"""PD410: the driver allocates and frees memory in steady steps."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent


@rule("PD410", "allocator-churn")
def check(session: Session) -> Finding | None:
    reading, device = device_reading_of(session)
    allocator = required(reading.trace.allocator, "the trace has no memory calls of the driver")
    exposed_s = reading.path_s("allocator")
    if reading.share(exposed_s) < LOW_SHARE:
        return None
    least_s, most_s = reading.saved_s("allocator", exposed_s)
    variable = "PYTORCH_HIP_ALLOC_CONF" if device.kind == "rocm" else "PYTORCH_CUDA_ALLOC_CONF"
    calls = ", ".join(reading.per_step(call.n, call.name, call.name) for call in allocator.calls[:2])
    return reading.finding(
        summary=(
            f"The device waits {percent(reading.share(exposed_s))} of the time for the driver to allocate or free "
            f"memory{f': {calls}' if calls else ''}."
        ),
        evidence=(
            reading.evidence("device idle while the driver allocates or frees memory", exposed_s, LOW_SHARE),
            *(fact(call.name, call.total_s, "s", n=call.n) for call in allocator.calls[:3]),
        ),
        prescriptions=fix(
            "keep freed memory cached: no torch.cuda.empty_cache() in the step, and expandable_segments:True",
            "minutes",
            treatment="expandable-segments",
            code=(
                'os.environ.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)\n'
                f'os.environ["{variable}"] = "expandable_segments:True"'
            ),
        ),
        low_s=least_s,
        high_s=most_s,
        basis="at most the time of these calls in which the device was idle",
    )
