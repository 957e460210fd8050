"""PD324: 16-bit precision that was measured to be slower than float32."""

from lightning_perf.records import HALF_PRECISIONS, Session
from lightning_perf.rules.findings import fact, trainer_fix
from lightning_perf.rules.matrix_units import matrix_units, may_multiply_in_bf16
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.signals import CODE_PHASES, is_cpu_run, steady_of
from lightning_perf.rules.user_lines import computing_s
from lightning_perf.rules.wording import percent


@replay_rule("PD324", "slow-mixed-precision")
def check(session: Session) -> Diagnosis | None:
    precision = session.settings.trainer.precision
    units, is_bf16, is_cpu = matrix_units(session, None), str(precision).startswith("bf16"), is_cpu_run(session)
    has_fast_units = units.bf16 if is_bf16 else units.fp16
    # On a CPU only a replay shows how fast 16-bit operators are.
    if precision not in HALF_PRECISIONS or (not is_cpu and has_fast_units is not False):
        return None
    steady = steady_of(session)
    share = computing_s(session, steady, *CODE_PHASES) / steady.span_s
    return Diagnosis(
        f'{percent(share)} of step time is computing with precision="{precision}"',
        (fact("precision", precision), fact("share of the time in forward and backward operators", share, "fraction")),
        trainer_fix('set precision="32-true"', "numerics", "precision-32", precision="32-true"),
        "float32 runs its 16-bit operators",
        at_stake=share,
        unmeasured="low" if is_cpu and not (is_bf16 and may_multiply_in_bf16(session)) else None,
    )
