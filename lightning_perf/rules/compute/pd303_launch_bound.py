"""PD303: the device waits for the host to launch its next small kernel."""

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.findings import compile_prescription, fact, fix, timed_finding
from lightning_perf.rules.kernel_signals import launching_s
from lightning_perf.rules.launch_signals import is_launch_bound, late_place, tiny_operators
from lightning_perf.rules.memory_signals import is_tight
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import CODE_PHASES, claims_within, phase_s, steady_of
from lightning_perf.rules.step_signals import bound_of, from_trace_or_steps, is_batch_unread, model_profile_of
from lightning_perf.rules.thresholds import LATE_MIN_SHARE, SHORT_KERNEL_S
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import duration, percent
from lightning_perf.stats.roofline import lower_bounds_of_step


@rule("PD303", "launch-bound", line_of=("forward", "backward"))
def check(session: Session) -> Finding | None:
    return from_trace_or_steps(session, _from_trace, _from_steps, "model_profile")


def _from_steps(session: Session) -> Finding | None:
    profile = model_profile_of(session)
    if profile.device == "cpu":
        raise Skip("a CPU launches no kernels")
    if bound_of(session) != "launch":
        return None
    steady = steady_of(session)
    reason = session.missing.get("model_profile.ceilings", "the ceilings of the device were not measured")
    bounds = lower_bounds_of_step(profile, required(profile.ceilings, reason))
    launch_s, device_s = bounds.launch_s or 0.0, max(bounds.compute_s or 0.0, bounds.bandwidth_s or 0.0)
    step_s = phase_s(steady, *CODE_PHASES) / steady.n_span_steps
    if step_s <= 0 or launch_s < LATE_MIN_SHARE * step_s:
        return None
    n = sum(module.n_operators or 0 for module in profile.modules)
    return timed_finding(
        steady,
        summary=(
            f"Launching {n:,} operators per step takes at least {percent(min(1.0, launch_s / step_s))} of forward "
            f"and backward; computing them would take the device {duration(device_s)}."
        ),
        evidence=(
            fact("launch time of operators ÷ forward and backward", launch_s / step_s, "fraction", LATE_MIN_SHARE, 1),
            fact("operators of forward and backward per step", n, "count"),
            fact("launch latency per operator, measured on this device", launch_s / max(1, n), "s"),
            fact("bound of the step", "launch"),
        ),
        prescriptions=_prescriptions(session),
        claims=claims_within(steady, (launch_s - device_s) * steady.n_span_steps, CODE_PHASES),
        basis="at most the launch time of these operators minus the device's compute time",
        confidence="low",
        method="modeled",
    )


def _from_trace(session: Session) -> Finding | None:
    reading, device = device_reading_of(session)
    trace = reading.trace
    kernels = trace.kernels
    tiny = tiny_operators(session, reading)
    late_s = launching_s(trace) - (tiny.saved_s if tiny is not None else 0.0)  # reported by PD304
    if kernels is None or kernels.median_s is None or not is_launch_bound(reading, late_s):
        return None
    late_s = min(late_s, reading.idle_limit_s)
    site = late_place(trace)
    with_profiler = ", with the profiler active" if trace.steps and not reading.is_timed else ""
    return reading.finding(
        summary=(
            f"The device waits {percent(reading.share(late_s))} of the time for the host to launch kernels: "
            f"{kernels.n_per_step:.0f} kernels {'per step' if trace.steps else 'in the trace'}, median "
            f"{duration(kernels.median_s)}{f'; the longest waits are at {site}' if site else ''}."
        ),
        evidence=(
            reading.evidence(f"device idle because of late launches{with_profiler}", late_s, LATE_MIN_SHARE),
            fact("median kernel time", kernels.median_s, "s", SHORT_KERNEL_S, trace.n_kernels),
            fact("kernels " + ("per step" if trace.steps else "in the trace"), kernels.n_per_step),
            reading.evidence("device busy", device.busy_s),
        ),
        prescriptions=_prescriptions(session),
        high_s=late_s,
        basis="at most the time that the device waits for launches",
        confidence="medium" if trace.has_stacks else "high",
    )


def _prescriptions(session: Session) -> tuple[Prescription | None, ...]:
    larger = fix("use a larger batch: more work per kernel", "minutes", "semantics", treatment="batch-size")
    return compile_prescription(session, " with CUDA graphs"), None if is_tight(session) or is_batch_unread(
        session
    ) else larger
