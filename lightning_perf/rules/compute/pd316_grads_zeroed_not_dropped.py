"""PD316: gradients are filled with zeros instead of set to None."""

from lightning_perf.records import Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.signals import is_cpu_run, share_of, steady_of
from lightning_perf.rules.thresholds import ACCUMULATING_FACTOR, LOW_SHARE, ZEROING_MIN_SHARE
from lightning_perf.rules.wording import percent


@replay_rule("PD316", "grads-zeroed-not-dropped")
def check(session: Session) -> Diagnosis | None:
    steady = steady_of(session)
    model = session.settings.model
    seen = [o.zero_grad_keeps_tensors for o in model.optimizers] if model is not None else []
    if not any(keeps is not None for keeps in seen):
        raise Skip("how gradients are cleared is not known")
    if not any(seen):
        return None
    times = [time for time in steady.named if time.kind == "loop" and time.name == "zero_grad"]
    if not times:
        raise Skip("the time in zero_grad was not measured")
    share, n = share_of(times), sum(time.n_calls for time in times)
    if share < ZEROING_MIN_SHARE:
        return None
    both_s = ACCUMULATING_FACTOR * share * steady.span_s
    return Diagnosis(
        f"{percent(share)} of the time is spent filling gradients with zeros",
        (
            fact("share of the time in zero_grad", share, "fraction", ZEROING_MIN_SHARE, n),
            fact("gradients kept as zeros", True),
        ),
        fix("call zero_grad(set_to_none=True)", "one line", code="optimizer.zero_grad(set_to_none=True)"),
        "with set_to_none=True clearing and accumulating gradients is",
        replayed_as="zero-grad-none",
        phases=("optimizer", "backward"),
        most_s=both_s,
        # Replayed gradients stay in caches that the rest of a step would evict; a device clears them asynchronously.
        seen_s=both_s if is_cpu_run(session) else None,
        unmeasured="low" if share >= LOW_SHARE else "info",
    )
