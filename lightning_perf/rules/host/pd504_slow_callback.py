"""PD504: a callback, or a hook of the module, takes a share of the time."""

from lightning_perf.records import Finding, NamedTime, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, removal_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import claims_of, named_by_kind, share_of, steady_of
from lightning_perf.rules.thresholds import HOOK_MIN_SHARE, LOG_EVERY_STEPS, MANY, SAME_WORK_FRACTION
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
        left=sum(time.share * _left(time, worst, steady) for time in times) / share,
        left_least=0.0,
    )


def _left(time: NamedTime, worst: NamedTime, steady: StageTimes) -> float:
    """Return the part of a hook's time that remains if its work is done as rarely as recommended.

    The hook may already skip its work in most calls, and then less is saved; unless all its calls take about as long:
    then even in fast steps, its phase takes more than what is left of it.
    """
    n_times = MANY
    phase = steady.phases.get(time.phase)
    if time is worst and phase is not None and phase.p10_s is not None and steady.n_steps:
        each_s = time.share * steady.span_s / steady.n_steps
        others_s = phase.total_s / steady.n_steps - each_s
        if phase.p10_s - others_s >= SAME_WORK_FRACTION * each_s:
            n_times = LOG_EVERY_STEPS
    return 1 / min(n_times, max(1, time.n_calls))


def _code(name: str, worst: NamedTime, is_in_steps: bool) -> str:
    counted = f"global_step % {LOG_EVERY_STEPS}" if is_in_steps else f"current_epoch % {MANY}"
    if worst.kind == "callback":
        return f"# in {name}\nif trainer.{counted} != 0:\n    return"
    # Hooks of a module do not receive the Trainer, and some must return their input, so they cannot return early.
    return f"# around the costly part of {name}\nif self.trainer.{counted} == 0:\n    ..."
