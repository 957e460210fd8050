"""PD301: matrix multiplications in full precision where lower precision was measured to be faster."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact
from lightning_perf.rules.kernel_signals import full_precision_s, work_share
from lightning_perf.rules.matrix_units import matrix_units, may_multiply_in_bf16, precision_fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.signals import is_cpu_run, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import LOW_SHARE, MATRIX_MIN_SHARE
from lightning_perf.rules.trace_reading import lacks_device_events, reading_of
from lightning_perf.rules.user_lines import computing_s
from lightning_perf.rules.wording import percent
from lightning_perf.traces.kernels import MATRIX_KINDS

FULL_PRECISION = ("32", "32-true")
MATRIX_OPERATORS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::mkldnn_convolution",
    "aten::convolution_backward",  # calls no other operator: its own time contains the products
)


@replay_rule("PD301", "full-precision-matmul", lowers_precision=True)
def check(session: Session) -> Diagnosis | None:
    precision = session.settings.trainer.precision
    if precision is not None and precision not in FULL_PRECISION:
        return None
    share, time_share = _matrix_shares(session)
    if share < MATRIX_MIN_SHARE or time_share < LOW_SHARE:
        return None
    found = _precision(session)
    if found is None:
        return None
    treatment, flag = found
    evidence = fact("share of compute time in fp32 matrix multiplications", share, "fraction", MATRIX_MIN_SHARE)
    setting = () if precision is None else (fact("precision", precision),)
    symptom = f"{percent(time_share)} of step time is fp32 matrix multiplication"
    effect = f"{treatment.removeprefix('precision-')} runs these operators"
    prescription = precision_fix(session, treatment, flag)
    return Diagnosis(symptom, (evidence, *setting), prescription, effect, replayed_as=treatment, at_stake=time_share)


def _matrix_shares(session: Session) -> tuple[float, float]:
    """Return the share of compute time and of all time in fp32 matrix multiplications.

    Raises:
        Skip: Neither a window nor a sampled step shows operators, or their precision is not known.
    """
    precision = session.settings.trainer.precision
    try:
        reading = reading_of(session)
    except Skip:
        return _sampled_shares(session)
    trace, kernels = reading.trace, reading.trace.kernels
    if trace.device is None:
        profile = session.model_profile  # knows the dtypes of operators, unlike the trace
        if lacks_device_events(trace) or not trace.operators or (profile is not None and profile.operators):
            return _sampled_shares(session)
        if precision is None:
            raise Skip("the trace does not show in which precision the CPU computes")
        matrix_s = sum(operator.host_self_s for operator in trace.operators if operator.name in MATRIX_OPERATORS)
        all_s = sum(operator.host_self_s for operator in trace.operators)
        return (matrix_s / all_s if all_s > 0 else 0.0), reading.share(matrix_s)
    if kernels is None:
        return 0.0, 0.0
    seconds = full_precision_s(trace, is_precision_known=precision is not None)
    if seconds and kernels.matrix_tensor_core_fraction is None and precision is None:
        raise Skip("the names of the matrix kernels do not show their precision")
    return work_share(trace, *MATRIX_KINDS), reading.share(seconds)


def _sampled_shares(session: Session) -> tuple[float, float]:
    steady, operators = steady_of(session), model_profile_of(session).operators
    all_s = sum(one.total_s or 0.0 for one in operators)
    full = [one for one in operators if one.flops and one.dtype == "float32"]
    # Operators on a device are not timed: if any multiplies matrices in fp32, all compute time counts.
    share = sum(one.total_s or 0.0 for one in full) / all_s if all_s > 0 else float(bool(full))
    return share, share * computing_s(session, steady, "forward", "backward") / steady.span_s


def _precision(session: Session) -> tuple[str, str] | None:
    """Return the 16-bit treatment to measure and its Trainer argument; None if no 16-bit dtype is fast here."""
    trace = next((window.trace for window in reversed(session.windows) if window.trace is not None), None)
    is_cpu = is_cpu_run(session) and (trace is None or trace.device is None)
    units = matrix_units(session, trace)
    bf16, fp16 = (may_multiply_in_bf16(session), False) if is_cpu else (units.bf16, units.fp16)
    if bf16 is None and not fp16:
        raise Skip("whether the hardware has fast 16-bit matrix multiplications is not known")
    treatment, flag = ("precision-bf16", "bf16-mixed") if bf16 else ("precision-fp16", "16-mixed")
    return (treatment, flag) if bf16 or fp16 else None
