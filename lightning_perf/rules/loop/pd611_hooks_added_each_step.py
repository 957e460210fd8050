"""PD611: each step adds a hook to a module, so that each step takes longer than the one before."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import place


@rule("PD611", "hooks-added-each-step", explains=("PD605", "PD333", "PD328"))
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    model = required(session.settings.model, "the model was not read")
    added, blocks = model.added_hooks, steady.timeline
    if added is None or len(blocks) < 2:
        return None
    first, last = blocks[0], blocks[-1]
    growth = {
        phase: sum(
            max(0.0, block.phases.get(phase, 0.0) - first.phases.get(phase, 0.0)) * block.n_steps for block in blocks
        )
        for phase in ("forward", "backward")
    }
    low_s = sum(growth.values())
    # Hooks from before the first block cost as much each as those added since.
    per_step_s = (last.step_s - first.step_s) / (last.first_step - first.first_step)
    before_s = max(0.0, per_step_s * first.first_step) * steady.n_steps
    if low_s + before_s < LOW_SHARE * steady.span_s:
        return None
    name = added.module or model.class_name
    hook = f", {place(added.function, added.site)}," if added.function else ""
    return timed_finding(
        steady,
        summary=(
            f"{name} has {added.n_hooks:,} hooks, {added.per_step:.2g} more with each step{hook} and runs all of them: "
            "each step takes longer than the one before."
        ),
        evidence=(
            fact("hooks of the module", added.n_hooks, "count"),
            fact("hooks added per step", added.per_step, "count"),
            fact("time of later steps beyond the first ones", low_s / steady.span_s, "fraction", LOW_SHARE),
        ),
        prescriptions=fix(
            f"register {added.function or 'the hook'} once, in setup or __init__, or remove it after the step",
            "minutes",
            code="handle = module.register_forward_hook(hook)\n...\nhandle.remove()",
        ),
        claims={"forward": growth["forward"] + before_s, "backward": growth["backward"]},
        low_s=low_s,
        basis="later steps as short as the first ones, at least; at most as short as without hooks",
    )
