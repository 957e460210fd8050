"""PD510: gradients are not cleared between optimizer steps."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.thresholds import UNCLEARED_MIN_FRACTION
from lightning_perf.rules.wording import percent


@rule("PD510", "gradients-not-zeroed")
def check(session: Session) -> Finding | None:
    model = session.settings.model
    watched = [o for o in model.optimizers if o.steps_without_zero_grad is not None] if model else []
    if not watched:
        raise Skip("optimizer steps were not observed")
    worst = max(watched, key=lambda o: (o.steps_without_zero_grad or 0) / max(1, o.n_steps_watched))
    n_uncleared = worst.steps_without_zero_grad or 0
    fraction = n_uncleared / max(1, worst.n_steps_watched)
    if fraction < UNCLEARED_MIN_FRACTION:
        return None
    return make_finding(
        # Not rated by time saved: the training itself is wrong.
        severity="medium",
        summary=(
            f"{worst.class_name} used gradients that were not cleared in {percent(fraction)} of its steps: "
            "they accumulate from step to step."
        ),
        evidence=fact(
            "steps with gradients that were not cleared",
            fraction,
            "fraction",
            UNCLEARED_MIN_FRACTION,
            worst.n_steps_watched,
        ),
        prescriptions=fix(
            "call zero_grad before each backward pass", "one line", "semantics", code="optimizer.zero_grad()"
        ),
    )
