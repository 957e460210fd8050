"""PD611: each step or epoch adds a hook to a module or a parameter, so that steps take longer and longer."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import number_of, place
from lightning_perf.stats.leak import fit_trend


@rule("PD611", "hooks-added-each-step", explains=("PD605", "PD333", "PD328"))
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    model = required(session.settings.model, "the model was not read")
    added, blocks = model.added_hooks, steady.timeline
    if added is None:
        return None
    low_s, claims = 0.0, {}
    for phase in ("forward", "backward"):
        trend = fit_trend([block.first_step for block in blocks], [block.phases.get(phase, 0.0) for block in blocks])
        if trend is None or trend.low <= 0:
            continue
        low_s += sum(trend.low * (block.first_step - blocks[0].first_step) * block.n_steps for block in blocks)
        # Hooks from before the first block take as long each as those added since.
        claims[phase] = sum(trend.high * block.first_step * block.n_steps for block in blocks)
    if sum(claims.values()) < LOW_SHARE * steady.span_s:
        return None
    name = added.module or model.class_name
    hook = f": {place(added.function, added.site)}" if added.function else ""
    unit, rate = "step", added.per_step
    if added.per_epoch is not None:
        unit, rate = "epoch", added.per_epoch
    hooks = number_of(round(rate), "hook") if round(rate, 1) >= 1 else f"{rate:.1g} hooks"
    return timed_finding(
        steady,
        summary=(
            f"Training adds {hooks} per {unit} to {name}{hook}. All {added.n_hooks:,} of them run in the end, "
            f"and each {unit} takes longer than the one before."
        ),
        evidence=(
            fact("hooks in the end", added.n_hooks, "count"),
            fact(f"hooks added per {unit}", rate, "count"),
            fact("growth of forward and backward, at least", low_s / steady.span_s, "fraction"),
        ),
        prescriptions=fix(
            f"register {added.function or 'the hook'} once, in setup or __init__, or remove it after the {unit}",
            "minutes",
            code="handle = module.register_forward_hook(hook)\n...\nhandle.remove()",
        ),
        claims=claims,
        low_s=low_s,
        basis="between the growth since the first steps and the growth since a step without these hooks",
        confidence="medium",
    )
