"""PD340: more parameter groups than differ in their arguments."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.optimizer_signals import optimizer_step, optimizers_of
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.signals import is_cpu_run, steady_of
from lightning_perf.rules.thresholds import OPTIMIZER_MIN_SHARE
from lightning_perf.rules.wording import percent, place

_TREATMENT = "joined-groups"


@replay_rule("PD340", "parameter-groups")
def check(session: Session) -> Diagnosis | None:
    steady, optimizers = steady_of(session), optimizers_of(session)
    found = next((one for one in optimizers if one.n_groups > one.n_distinct_groups > 0), None)
    share, seen_s = optimizer_step(session, _TREATMENT)
    if found is None or share < OPTIMIZER_MIN_SHARE:
        return None
    model = session.settings.model
    site = model.optimizers_site if model is not None else ""
    made = f" of {place('configure_optimizers', site)}" if site else ""
    return Diagnosis(
        f"{found.class_name}{made} updates {found.n_groups} parameter groups one after the other, and optimizers take "
        f"{percent(share)} of step time",
        (
            fact("share of the time in the optimizer's step", share, "fraction", OPTIMIZER_MIN_SHARE, steady.n_steps),
            fact("parameter groups", found.n_groups, "count"),
            fact("kinds of groups at the start", found.n_distinct_groups, "count"),
        ),
        fix(
            "make one group of parameters with the same learning rate and weight decay",
            "minutes",
            "numerics",
            code=(
                "joined = {}  # of groups, the list of dicts that the optimizer gets now\n"
                "for group in groups:\n"
                '    arguments = tuple((key, value) for key, value in group.items() if key != "params")\n'
                '    joined.setdefault(arguments, []).extend(group["params"])\n'
                'groups = [{"params": parameters, **dict(arguments)} for arguments, parameters in joined.items()]'
            ),
        ),
        "with groups of the same arguments joined, the optimizer's step runs",
        replayed_as=_TREATMENT,
        phases=("optimizer",),
        most_s=None if is_cpu_run(session) else seen_s,
        seen_s=seen_s,
        unmeasured=None,  # groups that are equal at the start may differ later
    )
