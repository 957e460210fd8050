"""PD302: fp32 matrix multiplications that could run on Tensor Cores as TF32."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fix, optional_fact
from lightning_perf.rules.kernel_signals import full_precision_s, kind_path_s
from lightning_perf.rules.matrix_units import matrix_units
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import required
from lightning_perf.rules.thresholds import TRACE_MIN_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent
from lightning_perf.traces.kernels import MATRIX_KINDS


@replay_rule("PD302", "tf32-off", lowers_precision=True)
def check(session: Session) -> Diagnosis | None:
    setting = session.settings.torch.float32_matmul_precision
    if setting not in (None, "highest"):
        return None
    reading, _ = device_reading_of(session)
    has_tf32 = required(matrix_units(session, reading.trace).tf32, "whether the device has TF32 is not known")
    kernels = reading.trace.kernels
    matrix_s = kernels.matrix_precisions.get("fp32", 0.0) if kernels is not None else 0.0
    if not has_tf32 or kernels is None or reading.share(matrix_s) < TRACE_MIN_SHARE:
        return None
    part = matrix_s / kernels.matrix_s if kernels.matrix_s > 0 else 0.0
    on_path_s = part * kind_path_s(reading.trace, *MATRIX_KINDS)
    if not reading.is_noticeable(on_path_s):
        return None
    return Diagnosis(
        f"{percent(reading.share(matrix_s))} of step time is fp32 matrix kernels that do not use TF32",
        (
            reading.evidence("matrix kernels in plain fp32", matrix_s, TRACE_MIN_SHARE),
            optional_fact("float32_matmul_precision", setting),
        ),
        fix(
            'set torch.set_float32_matmul_precision("high")',
            "one line",
            "numerics",
            treatment="matmul-precision-high",
            code='torch.set_float32_matmul_precision("high")',
        ),
        "TF32 runs these operators",
        # If nearly all matrix kernels are in fp32, PD301 claims the same time.
        at_stake=0.0 if full_precision_s(reading.trace) else reading.share(on_path_s),
    )
