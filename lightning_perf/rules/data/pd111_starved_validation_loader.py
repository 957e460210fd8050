"""PD111: validation waits for its loader."""

from lightning_perf.records import Effort, Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.loader_curve import plan_workers
from lightning_perf.rules.loader_signals import slowest_of, with_sharding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.thresholds import MIN_SPAN_S, MIN_STEPS, WAIT_MIN_SHARE
from lightning_perf.rules.wording import percent


@rule("PD111", "starved-validation-loader", explains=("PD601",), line_of=())
def check(session: Session) -> Finding | None:
    """Compare data wait with validation time; the gain refers to the whole training."""
    steady = steady_of(session)
    validation = session.validation
    if validation is None or validation.span_s < MIN_SPAN_S:
        raise Skip(session.missing.get("validation", "fit ran no validation"))
    if validation.n_steps < MIN_STEPS:
        raise Skip(f"{validation.n_steps} validation batches; at least {MIN_STEPS} are needed")
    share = phase_s(validation, "data_wait") / validation.span_s
    if share < WAIT_MIN_SHARE:
        return None
    loaders = loaders_of(session, "val")
    loader = slowest_of(session, loaders)
    plan = plan_workers(session, loader, validation, share)
    if plan.is_too_cheap:
        return None
    validation_s = phase_s(steady, "validation")
    can_recommend = plan.n_workers > 0 and loader.num_workers is not None
    scale = validation.n_span_steps / validation.span_s * validation_s
    if can_recommend:
        code = f"DataLoader(..., num_workers={plan.n_workers}, persistent_workers=True)  # in val_dataloader"
        which = f" (the slowest of {len(loaders)})" if len(loaders) > 1 else ""
        summary = f"set num_workers={plan.n_workers} (now {plan.n_now}) on the val loader{which}"
        effort: Effort = "minutes" if loader.why_not_changed() else "one line"
        advice = fix(with_sharding(loader, plan.n_workers, summary), effort, code=code)
    else:
        advice = fix("make validation samples cheaper or cache them", "hours")
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of validation is spent waiting for data. Validation is "
            f"{percent(validation_s / steady.span_s)} of training time."
        ),
        evidence=(
            fact("share of validation waiting for data", share, "fraction", WAIT_MIN_SHARE, validation.n_steps),
            fact("validation, share of training time", validation_s / steady.span_s, "fraction"),
            fact(f"time to make one batch ({plan.basis})", plan.batch_s, "s"),
        ),
        prescriptions=advice,
        claims={"validation": plan.saved_high_s * scale if can_recommend else share * validation_s},
        low_s=plan.saved_low_s * scale if can_recommend else 0.0,
        method=plan.method if can_recommend else "timed",
        basis="estimated from validation batch times" if can_recommend else "at most the data wait of validation",
    )
