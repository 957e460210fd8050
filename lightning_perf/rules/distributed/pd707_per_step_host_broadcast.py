"""PD707: the Trainer makes the host wait for the device in every step of a run on several ranks."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.memory_signals import is_tight
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import check_has_ranks
from lightning_perf.rules.thresholds import LOW_SHARE, MIN_ITEMS_PER_STEP
from lightning_perf.rules.trace_reading import reading_of
from lightning_perf.rules.wording import duration, number_of, percent


@rule("PD707", "per-step-host-broadcast")
def check(session: Session) -> Finding | None:
    check_has_ranks(session)
    if not session.run.has_trainer:
        raise Skip("only a Trainer reads a number in each step")
    if session.settings.trainer.accelerator == "cpu":
        raise Skip("on a CPU there is no device to wait for")
    reading = reading_of(session)
    syncs = reading.trace.syncs
    n_steps = len(reading.trace.steps)
    if syncs is None or n_steps == 0:
        raise Skip("the trace has no steps")
    share = min(1.0, reading.share(syncs.wait_s))
    reads_time = "Timer" in session.settings.trainer.callbacks  # which max_time adds
    if syncs.item_n < MIN_ITEMS_PER_STEP * n_steps or share < LOW_SHARE:
        return None
    return make_finding(
        severity="info",
        summary=(
            f"The host reads {number_of(syncs.item_n / n_steps, 'number')} per step from the device and waits "
            f"{duration(syncs.wait_s / n_steps)} ({percent(share)}). With several ranks, Lightning itself reads "
            "one number per step, to detect a SIGTERM; no flag turns that off."
        ),
        evidence=(
            fact("numbers read from the device per step", syncs.item_n / n_steps, "count", MIN_ITEMS_PER_STEP, n_steps),
            fact("share of the time waiting for the device", share, "fraction", n=n_steps),
        ),
        prescriptions=(
            _NO_MAX_TIME if reads_time and syncs.item_n >= 2 * n_steps else None,
            None if is_tight(session) else _LONGER_STEPS,
        ),
    )


_NO_MAX_TIME = fix("limit the run by max_steps or max_epochs instead of max_time", "one line", "semantics")
_LONGER_STEPS = fix("use a larger batch: fewer steps, and fewer of these reads", "minutes", "semantics")
