"""PD703: DDP searches for unused parameters in every step and finds none."""

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, make_finding, timed_finding
from lightning_perf.rules.rank_signals import ranks_of
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.thresholds import UNUSED_MAX_FRACTION


def _fix(why: str) -> Prescription:
    return fix(
        f"set find_unused_parameters=False on DDP{why}",
        "one line",
        treatment="ddp-find-unused-off",  # without a Trainer flag: strategy="ddp" would drop other arguments of DDP
        code='Trainer(..., strategy=DDPStrategy(..., find_unused_parameters=False))  # without others: strategy="ddp"',
    )


def _is_searching(session: Session) -> bool:
    """Return whether DDP searches in every step: with a static graph, it does so in the first one only."""
    trainer = session.settings.trainer
    return bool(trainer.find_unused_parameters) and not trainer.static_graph


def preflight(session: Session) -> Finding | None:
    if not _is_searching(session) or session.run.world_size < 2:
        return None
    return make_finding(
        severity="info",
        summary="DDP will search for unused parameters in every step, which is needed only if there are some.",
        evidence=fact("find_unused_parameters", True),
        prescriptions=_fix(" if every parameter gets a gradient in each step"),
    )


@rule("PD703", "finding-unused-parameters", preflight=preflight)
def check(session: Session) -> Finding | None:
    """Report the search if every parameter gets a gradient in all sampled steps."""
    ranks = ranks_of(session)
    required(session.settings.trainer.find_unused_parameters, "the strategy is not DDP")
    if not _is_searching(session):
        return None
    sampled = [one for one in ranks.summaries if one.n_unused is not None]
    if not sampled:
        raise Skip("no step's gradients were sampled")
    if any(one.n_unused for one in sampled):
        return None
    steady = steady_of(session)
    backward_s = phase_s(steady, "backward")
    n_steps = sum(one.waiting_n for one in sampled)
    return timed_finding(
        steady,
        summary=(
            "DDP searches for unused parameters in every step, but there are none: in "
            f"{n_steps} sampled steps on {len(sampled)} ranks every parameter got a gradient."
        ),
        evidence=(fact("find_unused_parameters", True), fact("parameters without a gradient", 0, "count", n=n_steps)),
        prescriptions=_fix(": no parameter was unused"),
        claims={"backward": UNUSED_MAX_FRACTION * backward_s},
        basis="assumed: at most a fifth of backward",
        confidence="medium",
        method="modeled",
    )
