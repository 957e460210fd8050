"""PD504: a callback, or a hook of the module, takes a share of the time."""

from lightning_perf.records import Finding, NamedTime, Session
from lightning_perf.rules.findings import fact, fix, removal_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import claims_of, fast_phase_s, named_by_kind, share_of, steady_of
from lightning_perf.rules.thresholds import HOOK_MIN_SHARE, LOG_EVERY_STEPS, MANY
from lightning_perf.rules.wording import called, duration, percent


@rule("PD504", "slow-callback", needs_phase="callbacks")
def check(session: Session) -> Finding | None:
    """Find the callback that takes most of the time."""
    steady = steady_of(session)
    name, times = next(iter(named_by_kind(steady, "callback", "module_hook").items()), ("", []))
    share = share_of(times)
    if share < HOOK_MIN_SHARE:
        return None
    worst = max(times, key=lambda time: time.share)
    each_s = worst.total_s / max(1, worst.n_calls)
    is_in_steps = "batch" in worst.hook or not worst.hook.endswith(("_start", "_end"))
    is_each_step = is_in_steps and fast_phase_s(steady, worst.phase) is not None
    often = f"{LOG_EVERY_STEPS} steps" if is_in_steps else f"{MANY} epochs"
    where, it = f"{len(times)} hooks of {name}", worst.hook
    if len(times) == 1:
        where, it = f"{name}.{worst.hook}", "It"
    return removal_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is spent in {where}. {it} was called "
            f"{called(worst.n_calls)} and took {duration(each_s)}{' each' if worst.n_calls > 1 else ''}."
        ),
        evidence=(
            fact(f"share of the time in {name}", share, "fraction", HOOK_MIN_SHARE, worst.n_calls),
            fact(f"time per call of {name}.{worst.hook}", each_s, "s", n=worst.n_calls),
        ),
        prescriptions=fix(
            f"run {name}.{worst.hook} every {often}, or make it faster",
            "minutes",
            code=_code(f"{name}.{worst.hook}", worst, is_in_steps),
        ),
        timed=claims_of(times, steady.span_s),
        # Unless it takes as long in each step, the hook may already skip its work in most calls: less is saved then.
        left=1 / min(LOG_EVERY_STEPS if is_each_step else MANY, max(1, worst.n_calls)),
        left_least=0.0,
    )


def _code(name: str, worst: NamedTime, is_in_steps: bool) -> str:
    counted = f"global_step % {LOG_EVERY_STEPS}" if is_in_steps else f"current_epoch % {MANY}"
    if worst.kind == "callback":
        return f"# in {name}\nif trainer.{counted} != 0:\n    return"
    # Hooks of a module do not receive the Trainer, and some must return their input, so they cannot return early.
    return f"# around the costly part of {name}\nif self.trainer.{counted} == 0:\n    ..."
