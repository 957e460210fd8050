"""PD341: one line takes derivatives of several outputs in a backward pass each."""

from lightning_perf.records import BackwardPasses, Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import CODE_PHASES, claims_within, share_of_step, steady_of
from lightning_perf.rules.step_signals import loop_at, loop_finding, model_profile_of
from lightning_perf.rules.thresholds import EXPLAINED_PART, LOW_SHARE
from lightning_perf.rules.wording import percent


@rule("PD341", "gradients-one-by-one", explains=("PD304",))
def check(session: Session) -> Finding | None:
    steady, profile = steady_of(session), model_profile_of(session)
    others = {one.kind for one in profile.known_results if one.kind == "backward" or one.n_passes}
    if others & {"backward", "twice"}:  # PD331: they add to the same gradients; PD328: derivatives by several inputs
        return None
    found = max((one for one in profile.backward_passes if _is_shared(one)), key=lambda one: one.total_s, default=None)
    if found is None or found.shared is None or found.shared * share_of_step(steady, found.total_s) < LOW_SHARE:
        return None
    evidence = (
        fact("backward passes per step from this line", found.n, "count"),
        fact("their time in a step", found.total_s, "s"),
        fact("part of their operators that an earlier pass went through", found.shared, "fraction"),
    )
    summary = (
        f"{found.site} starts {found.n} backward passes per step through the same layers: "
        f"{percent(share_of_step(steady, found.total_s))} of step time."
    )
    whole = fix(
        "take the derivatives of all outputs in one pass",
        "minutes",
        "numerics",
        code=(
            "torch.autograd.grad(outputs.sum(), inputs, create_graph=True)  # if each depends on its own inputs alone\n"
            "torch.func.vmap(torch.func.jacrev(function))(inputs)  # otherwise"
        ),
    )
    loop = loop_at(session, found.site)
    if loop is not None and session.sync_calls is not None:
        return loop_finding(steady, loop, session.sync_calls, summary=summary, evidence=evidence, prescriptions=whole)
    return timed_finding(
        steady,
        summary=summary,
        evidence=evidence,
        prescriptions=whole,
        claims=claims_within(steady, found.shared * found.total_s * steady.n_span_steps, CODE_PHASES),
        basis="operators of one step, timed by backward pass",
        confidence="medium",
    )


def _is_shared(passes: BackwardPasses) -> bool:
    return bool(passes.site) and passes.shared is not None and passes.shared > EXPLAINED_PART
