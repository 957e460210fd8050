"""PD308: the optimizer updates tensors one by one."""

from lightning_perf.records import MIXED_PRECISIONS, OptimizerSettings, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.optimizer_signals import optimizer_step, optimizers_of
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.signals import is_cpu_run, steady_of
from lightning_perf.rules.thresholds import OPTIMIZER_MIN_SHARE
from lightning_perf.rules.wording import percent

_WITHOUT_FOREACH = ("Muon", "SparseAdam")
"""Optimizers of torch without the argument ``foreach``."""


@replay_rule("PD308", "unfused-optimizer", yields_to=("PD322",))
def check(session: Session) -> Diagnosis | None:
    steady, optimizers = steady_of(session), optimizers_of(session)
    slow = next((o for o in optimizers if o.implementation == "single-tensor"), None)
    if slow is None:
        if all(o.implementation == "unknown" for o in optimizers):
            raise Skip("the implementation of the optimizer is not known")
        return None
    flag = _flag(session, slow)
    if flag is None:
        return None
    treatment = f"{flag}-optimizer"
    share, seen_s = optimizer_step(session, treatment)
    if share < OPTIMIZER_MIN_SHARE:
        return None
    return Diagnosis(
        f"{slow.class_name} updates {slow.n_tensors} tensors one by one in {percent(share)} of step time",
        (
            fact("share of the time in the optimizer's step", share, "fraction", OPTIMIZER_MIN_SHARE, steady.n_steps),
            fact("implementation", slow.implementation),
            fact("tensors updated", slow.n_tensors, "count"),
        ),
        fix(
            f"pass {flag}=True to {slow.class_name}{_warning(session, flag)}",
            "one line",
            "numerics",
            treatment="fused-optimizer" if flag == "fused" else "",
            code=f"torch.optim.{slow.class_name}(self.parameters(), ..., {flag}=True)",
        ),
        f"{flag}=True runs the optimizer's step",
        replayed_as=treatment,
        phases=("optimizer",),
        most_s=None if is_cpu_run(session) else seen_s,
        seen_s=seen_s,  # replayed copies stay in caches that the rest of a step would evict
    )


def _warning(session: Session, flag: str) -> str:
    """Return a warning about using the flag together with PD301's recommendation; empty if they are compatible."""
    is_clipping = flag == "fused" and session.settings.is_clipping
    return " (not with mixed precision: Lightning then clips no gradients of fused optimizers)" if is_clipping else ""


def _flag(session: Session, optimizer: OptimizerSettings) -> str | None:
    """Return the argument to set; None if there is none, as on a CPU, where foreach also updates tensors one by one.

    Lightning does not clip gradients of fused optimizers in mixed precision.
    """
    trainer = session.settings.trainer
    if optimizer.supports_fused and not (trainer.precision in MIXED_PRECISIONS and session.settings.is_clipping):
        return "fused"
    return None if is_cpu_run(session) or optimizer.class_name in _WITHOUT_FOREACH else "foreach"
