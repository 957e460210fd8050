"""PD320: fp16 training skips optimizer steps because gradients overflow."""

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, gain_from, make_finding, severity_of_gain, trainer_fix
from lightning_perf.rules.matrix_units import matrix_units
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import LOW_SHARE, SCALER_MIN_SCALE, SCALER_MIN_STEPS
from lightning_perf.rules.wording import percent


@rule("PD320", "loss-scaler-skipping")
def check(session: Session) -> Finding | None:
    scaler = required(session.loss_scaler, session.missing.get("loss_scaler", "this training has no loss scaler"))
    n_skipped = required(scaler.skips, "the loss scaler does not report skipped steps")
    if scaler.n_steps < SCALER_MIN_STEPS:
        raise Skip(f"{scaler.n_steps} optimizer steps with a settled scale; at least {SCALER_MIN_STEPS} are needed")
    steady = steady_of(session)
    skipped = n_skipped / scaler.n_steps
    has_collapsed = scaler.scale < SCALER_MIN_SCALE
    if skipped < LOW_SHARE and not has_collapsed:
        return None
    collapse = f" The loss scale fell from {scaler.first_scale:g} to {scaler.scale:g}." if has_collapsed else ""
    has_bf16 = matrix_units(session, None).bf16
    lost_s = skipped * steady.span_s
    # bf16 has the range of fp32
    gain = gain_from(steady, lost_s if has_bf16 else 0.0, lost_s, "the skipped steps", "timed")
    return make_finding(
        severity=severity_of_gain(gain) if skipped >= LOW_SHARE else "low",
        summary=(
            f"{percent(skipped)} of optimizer steps are skipped because fp16 gradients overflow "
            f"({n_skipped} of {scaler.n_steps}).{collapse}"
        ),
        evidence=(
            fact("optimizer steps skipped", skipped, "fraction", LOW_SHARE, scaler.n_steps),
            fact("loss scale", scaler.scale, threshold=SCALER_MIN_SCALE),
        ),
        prescriptions=(None if has_bf16 is False else _BF16, _fewer_overflows(session)),
        gain=gain,
    )


_BF16 = trainer_fix(
    'set precision="bf16-mixed", which needs no loss scaler', "numerics", "precision-bf16", precision="bf16-mixed"
)


def _fewer_overflows(session: Session) -> Prescription:
    """Recommend to clip gradients, unless they are, or Lightning refuses it because the optimizer is fused."""
    model = session.settings.model
    is_fused = model is not None and any(one.implementation == "fused" for one in model.optimizers)
    if session.settings.is_clipping or is_fused:
        return fix("run operators that overflow in fp32, or lower the learning rate", "minutes", "semantics")
    return fix(
        "clip gradients, and run operators that overflow in fp32",
        "minutes",
        "semantics",
        trainer_flags={"gradient_clip_val": 1.0},
        code="Trainer(..., gradient_clip_val=1.0)",
    )
