"""PD319: the CPU multiplies denormal numbers."""

from lightning_perf.records import OperatorProfile, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.signals import is_cpu_run, steady_of
from lightning_perf.rules.step_signals import model_profile_of
from lightning_perf.rules.thresholds import DENORMAL_LIKELY_FRACTION, DENORMAL_MIN_FRACTION, LOW_SHARE
from lightning_perf.rules.user_lines import computing_s
from lightning_perf.rules.wording import percent


@replay_rule("PD319", "denormal-arithmetic")
def check(session: Session) -> Diagnosis | None:
    if not is_cpu_run(session):
        return None
    operators = model_profile_of(session).operators
    slow = [operator for operator in operators if _has_denormal_inputs(operator)]
    if not slow:
        return None
    steady = steady_of(session)
    part = sum(one.total_s or 0.0 for one in slow) / max(1e-12, sum(one.total_s or 0.0 for one in operators))
    share = part * computing_s(session, steady, "forward", "backward") / steady.span_s
    if share < LOW_SHARE:
        return None
    worst = max(slow, key=lambda one: one.total_s or 0.0)
    fraction, metric = worst.denormal_fraction or 0.0, f"denormal fraction of the inputs of {worst.name}"
    return Diagnosis(
        f"{percent(share)} of the time is matrix multiplication with denormal numbers: {percent(fraction)} of the "
        f"inputs of {worst.name}",
        (fact(metric, fraction, "fraction", DENORMAL_MIN_FRACTION, worst.calls),),
        fix(
            "flush denormal numbers to zero",
            "one line",
            "numerics",
            treatment="flush-denormal",
            code="torch.set_flush_denormal(True)  # before the first computation",
        ),
        "flushing runs these operators",
        unmeasured="low" if fraction >= DENORMAL_LIKELY_FRACTION else None,
    )


def _has_denormal_inputs(operator: OperatorProfile) -> bool:
    is_timed_fp32 = operator.flops > 0 and operator.dtype == "float32" and operator.total_s is not None
    return is_timed_fp32 and (operator.denormal_fraction or 0.0) >= DENORMAL_MIN_FRACTION
