"""PD504: a callback, or a hook of the module, takes a share of the time."""

import msgspec

from lightning_perf.records import Finding, NamedTime, Prescription, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, removal_finding
from lightning_perf.rules.logging_cost import log_every
from lightning_perf.rules.machine_signals import queueing_of
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import call_s, claims_of, named_by_kind, share_of, steady_of, step_counter
from lightning_perf.rules.thresholds import EXPLAINED_PART, HOOK_MIN_SHARE, LOG_EVERY_STEPS, MANY, SAME_WORK_FRACTION
from lightning_perf.rules.user_lines import collecting_s
from lightning_perf.rules.wording import called, duration, percent

_AT_THE_END = ("on_train_end", "on_fit_end", "teardown")  # of the run, once
_AFTER_THE_STEP = ("on_train_batch_end", "lr_scheduler_step")  # of the optimizer, which increments the global step


@rule("PD504", "slow-callback", needs_phase="callbacks", is_host_time=True, line_of=())
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    name, times = next(iter(named_by_kind(steady, "callback", "module_hook").items()), ("", []))
    share = share_of(times)
    if share < HOOK_MIN_SHARE:
        return None
    times = [_placed(time, session) for time in times]
    worst = max(times, key=lambda time: time.share)
    if collecting_s(session, worst.phase) >= EXPLAINED_PART * share * steady.span_s:
        return None  # PD508 applies
    each_s = call_s(worst)
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
        prescriptions=_advice(f"{name}.{worst.hook}", worst, session),
        timed=claims_of(times, steady.span_s),
        left=1 - worst.share * (1 - _remaining_part(worst, steady)) / share,
        left_least=0.0,
        queueing=queueing_of(session),  # behind threads that it leaves work to, e.g. a logger's
    )


def _placed(time: NamedTime, session: Session) -> NamedTime:
    """Return a hook's time in the phase of the steady span that it is part of: all of validation is one phase."""
    is_in_validation = session.run.stage == "fit" and "validation" in time.hook
    return msgspec.structs.replace(time, phase="validation") if is_in_validation else time


def _is_in_steps(time: NamedTime) -> bool:
    return "batch" in time.hook or not time.hook.endswith(("_start", "_end"))


def _remaining_part(time: NamedTime, steady: StageTimes) -> float:
    """Return the part of a hook's time that remains for certain if its work is done as rarely as recommended.

    A hook that prepares the batch must run in each step. Other hooks may skip their work in most calls already, unless
    all calls take about as long: then even in fast steps, the phase takes more than what is left of the hook.
    """
    if time.phase == "transfer":
        return 1.0
    n_times, phase = MANY, steady.phases.get(time.phase)
    if phase is not None and steady.n_steps:
        each_s = time.share * steady.span_s / steady.n_span_steps
        least_s = SAME_WORK_FRACTION * each_s + phase.total_s / steady.n_span_steps - each_s
        is_in_each = _is_in_steps(time) and time.n_calls > steady.n_steps / 2
        if phase.p50_s is not None and phase.p50_s < least_s and is_in_each:  # it skips most steps already
            is_in_twentieth = phase.p95_s is not None and phase.p95_s >= each_s
            return 20 / LOG_EVERY_STEPS if is_in_twentieth else 1.0
        if phase.p10_s is not None and phase.p10_s >= least_s:
            n_times = LOG_EVERY_STEPS
    return 1 / min(n_times, max(1, time.n_calls))


def _advice(name: str, worst: NamedTime, session: Session) -> Prescription:
    """Recommend to run a hook less often, or to move its work to the loader where it prepares the batch."""
    if worst.phase == "transfer":
        return fix(
            f"make {name} faster, or do its work in the dataset or collate_fn, where workers can do it meanwhile",
            "minutes",
        )
    interval = session.settings.trainer.log_every_n_steps
    if name.startswith("DeviceStatsMonitor.") and interval is not None and interval < LOG_EVERY_STEPS:
        return log_every(LOG_EVERY_STEPS)  # Lightning's, which works in steps that write rows only
    if name == "Timer.on_train_batch_end":  # Lightning's, in which all ranks agree to go on after each batch
        return _timer_advice(session)
    if "checkpoint" in worst.hook:  # skipped, it would leave out of the checkpoint what loading needs
        return fix(f"save checkpoints less often, or make {name} faster", "minutes")
    is_in_steps, is_fit = _is_in_steps(worst), session.run.stage == "fit"
    is_single = not is_in_steps and not is_fit  # evaluation is one epoch
    if worst.hook in _AT_THE_END or is_single:
        return fix(f"make {name} faster", "minutes")
    often = "in the last epoch only" if _is_short(session) else f"every {MANY} epochs"
    if is_in_steps:
        often = f"every {LOG_EVERY_STEPS} steps"
    what = f"run {name} {often}, or make it faster"
    if worst.kind != "callback" and not is_in_steps and "validation" not in worst.hook:
        # It may be a part of the training, e.g. draw the data of the next epoch or update a baseline.
        what = f"make {name} faster, or run it {often}"
    # What it averages or reports, over steps or epochs, then covers fewer of them.
    return fix(what, "minutes", "semantics", code=_code(name, worst, is_in_steps, session))


def _is_short(session: Session) -> bool:
    """Return whether the run has too few epochs to do something in every ``MANY`` of them."""
    n_epochs = session.settings.trainer.max_epochs
    return n_epochs is not None and 0 < n_epochs <= MANY


def _timer_advice(session: Session) -> Prescription:
    package = session.settings.trainer.package or "lightning.pytorch"
    return fix(
        "limit the run by max_steps instead of max_time, or check the time once per epoch",
        "one line",
        "semantics",
        code=(
            f"from {package}.callbacks import Timer\n"
            'Trainer(..., callbacks=[Timer(duration="00:12:00:00", interval="epoch")])'
        ),
    )


def _code(name: str, worst: NamedTime, is_in_steps: bool, session: Session) -> str:
    is_evaluation = session.run.stage != "fit" or "validation" in worst.hook
    if is_in_steps and is_evaluation:  # the global step does not change in it
        return f"# around the costly part of {name}\nif batch_idx % {LOG_EVERY_STEPS} == 0:\n    ..."
    is_per_batch = "batch" in worst.hook or "backward" in worst.hook  # others are called once per optimizer step
    counter = step_counter(session) if is_per_batch else "global_step"
    counted = f"{counter} % {LOG_EVERY_STEPS}" if is_in_steps else f"current_epoch % {MANY}"
    if not is_in_steps and _is_short(session):
        trainer = "trainer" if worst.kind == "callback" else "self.trainer"
        at_the_end = f"{trainer}.current_epoch + 1 == {trainer}.max_epochs"
        return f"# around the costly part of {name}\nif {at_the_end}:\n    ..."
    if worst.kind == "callback":
        return f"# in {name}, unless it must run each time\nif trainer.{counted} != 0:\n    return"
    # Hooks of a module do not receive the Trainer, and some must return their input, so they cannot return early. What
    # they log in other steps than those whose values Lightning writes (the 50th, the 100th, …) would be written late.
    counted = f"self.trainer.{counted}"
    if is_in_steps and worst.hook not in _AFTER_THE_STEP:
        counted = f"(self.trainer.{counter} + 1) % {LOG_EVERY_STEPS}"
    return f"# around the costly part of {name}\nif {counted} == 0:\n    ..."
