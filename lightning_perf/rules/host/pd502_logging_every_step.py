"""PD502: logging takes too much of each step because it is done too often."""

import re
from collections.abc import Iterator

from lightning_perf.records import Evidence, Finding, Prescription, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, make_finding, removal_finding
from lightning_perf.rules.logging_cost import (
    log_every,
    log_once,
    longer_interval,
    n_rows_of,
    slow_calls,
    step_rows_part,
)
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import call_s, named_by_kind, phase_s, share_of, steady_of, step_counter
from lightning_perf.rules.thresholds import HOOK_MIN_SHARE, LOG_EVERY_STEPS, LOG_FREQUENT_STEPS
from lightning_perf.rules.user_lines import (
    collecting_s,
    is_logging,
    lines_computing_what_is_logged,
    lines_of,
)
from lightning_perf.rules.wording import percent, statement_of

# Methods of Lightning's logger connector: one runs for each row written, one for each value.
PER_ROW, PER_VALUE = "update_train_step_metrics", "log"


def preflight(session: Session) -> Finding | None:
    trainer = session.settings.trainer
    interval = required(trainer.log_every_n_steps, "log_every_n_steps is not known")
    if not trainer.loggers or not 0 < interval < LOG_FREQUENT_STEPS:
        return None
    return make_finding(
        severity="info",
        summary=f"Logging every {interval} steps is likely to cost time.",
        evidence=fact("log_every_n_steps", interval, threshold=LOG_FREQUENT_STEPS),
        prescriptions=log_every(LOG_EVERY_STEPS),
    )


@rule("PD502", "logging-every-step", needs_phase="logging", preflight=preflight, is_host_time=True, line_of=())
def check(session: Session) -> Finding | None:
    """Compare the logging phase, without slow loggers and the garbage collector, with the threshold."""
    steady = steady_of(session)
    loggers = named_by_kind(steady, "logger")
    slow_share = sum(share_of(slow_calls(times, session)) for times in loggers.values())
    pauses_s = collecting_s(session, "logging")  # of the collector, which logging's own objects may have started
    share = (phase_s(steady, "logging") - pauses_s) / steady.span_s - slow_share
    if share < HOOK_MIN_SHARE:
        return None
    collecting = named_by_kind(steady, "loop").get("metrics", ())
    writing_share = sum(share_of(times) for times in loggers.values()) - slow_share
    writing_share += share_of(time for time in collecting if time.hook == PER_ROW)
    others = [time for time in collecting if time.hook != PER_ROW]
    kept_share = share_of(time for time in others if time.hook)
    trainer = session.settings.trainer
    interval = trainer.log_every_n_steps
    wanted = longer_interval(interval or 1, share, session)
    part = 1 - (interval or 1) / wanted  # fraction of the rows that the longer interval leaves out
    once = log_once(session)
    can_wait = once is None and interval is not None and 0 < interval < LOG_EVERY_STEPS  # 0: steps pass no rows
    is_writing = can_wait and writing_share >= share_of(others)
    longer = log_every(wanted) if is_writing or (can_wait and writing_share >= HOOK_MIN_SHARE) else None
    off_bar = _OFF_BAR if _bar_metrics(session) else None
    is_collecting = share_of(others) > writing_share
    by_hand = once or _where_written(session) or _by_hand(session, is_collecting)
    how = _how(interval if once is None else None, is_collecting)
    saved_s = share * steady.span_s
    rows_part = min(1.0, writing_share / share)
    n_rows = max(map(n_rows_of, loggers.values()), default=0)
    if is_writing:
        rows_left, values_left = 1 - part * step_rows_part(steady, interval or 1, n_rows), 1.0
    else:
        rows_left = values_left = 1 / LOG_EVERY_STEPS
        if once is None:  # rows that are written every 50 steps stay
            rows_left = min(1.0, (interval or 1) / LOG_EVERY_STEPS)
    timed, certain_s = {"logging": saved_s + pauses_s}, saved_s
    values = [] if is_writing else lines_computing_what_is_logged(session)
    for time in values if sum(time.seconds for time in values) <= saved_s else ():  # else logging is not what costs
        timed[time.phase] = timed.get(time.phase, 0.0) + time.seconds
        certain_s += time.low_s if is_logging(time.line) else 0.0
    left = rows_part * rows_left + (1 - rows_part) * values_left
    return removal_finding(
        steady,
        summary=f"{percent(share)} of training time is spent logging{how}.",
        evidence=_evidence(session, steady, share),
        prescriptions=(longer, by_hand, off_bar) if is_writing else (by_hand, longer, off_bar),
        timed=timed,
        left=1 - (1 - left) * certain_s / sum(timed.values()),
        left_least=1 - part * (1 - kept_share / share) if is_writing else 0.0,
    )


def _evidence(session: Session, steady: StageTimes, share: float) -> Iterator[Evidence]:
    trainer = session.settings.trainer
    yield fact("share of the time in logging", share, "fraction", HOOK_MIN_SHARE, steady.n_steps)
    if session.run.has_trainer:
        yield fact("log_every_n_steps", trainer.log_every_n_steps)
    values = [time for time in named_by_kind(steady, "loop").get("metrics", ()) if time.hook == PER_VALUE]
    yield from (fact("time per value given to self.log", call_s(time), "s", n=time.n_calls) for time in values)
    for name, times in named_by_kind(steady, "logger").items():
        if n_rows := n_rows_of(times):
            each_s = sum(time.total_s for time in times) / n_rows
            yield fact(f"time per row written by {name}", each_s, "s", n=n_rows)
    if n_shown := _bar_metrics(session):
        yield fact("metrics on the progress bar", n_shown, "count")


def _bar_metrics(session: Session) -> int:
    """Return the number of metrics that a progress bar shows; without a bar, ``prog_bar=True`` costs nothing."""
    trainer = session.settings.trainer
    return trainer.prog_bar_metrics or 0 if trainer.progress_bar is not None else 0


_OFF_BAR = fix(
    "keep metrics off the progress bar: self.log(..., prog_bar=False)",
    "minutes",
    treatment="prog-bar-off",
    code='self.log("train_loss", loss, prog_bar=False)',
)


_EPOCH_MEAN = (
    "\n# for the mean of an epoch: self.losses.append(loss.detach()) here, and in on_train_epoch_end\n"
    '# self.log("train_loss", torch.stack(self.losses).mean()); self.losses.clear()'
)
_RECEIVER = re.compile(r"\b(self|pl_module)\.log(?:_dict)?\(")


def _where_written(session: Session) -> Prescription | None:
    """Recommend to log only in the steps whose values Lightning writes, in the user's own line; None if it is unknown.

    These are the 50th step, the 100th, …: a value logged in another one would be written there, some steps late.
    """
    trainer = session.settings.trainer
    lines = (time.line for time in lines_of(session) if time.phase != "validation" and is_logging(time.line))
    line = next(lines, None)
    receiver = _RECEIVER.search(line.code) if line is not None else None
    is_each_step = session.run.stage == "fit" and step_counter(session) == "global_step"
    if line is None or receiver is None or not is_each_step:
        return None
    if _writes_steps(session) and trainer.log_every_n_steps != LOG_EVERY_STEPS:
        return None
    step = "global_step" if line.entry == "on_train_batch_end" else "global_step + 1"
    counted = f"{receiver[1]}.trainer.{step}"
    counted = f"({counted})" if "+" in step else counted
    return fix(
        f"call self.log every {LOG_EVERY_STEPS} steps"
        + (", when Lightning writes its values" if _writes_steps(session) else " instead of in every step"),
        "minutes",
        code=(
            f"# {line.file}:{line.line}\n"
            f"if {counted} % {LOG_EVERY_STEPS} == 0:\n"
            f"    {statement_of(line.code)}" + (_EPOCH_MEAN if "on_epoch" in line.code else "")
        ),
    )


def _writes_steps(session: Session) -> bool:
    """Return whether a logger gets the values of steps; with ``log_every_n_steps=0`` it gets those of epochs only."""
    trainer = session.settings.trainer
    return bool(trainer.loggers) and trainer.log_every_n_steps != 0


def _by_hand(session: Session, is_collecting: bool) -> Prescription:
    if not session.run.has_trainer:
        code = f"if step % {LOG_EVERY_STEPS} == 0:\n    fabric.log_dict(metrics)"
        return fix(f"call fabric.log_dict every {LOG_EVERY_STEPS} steps", "minutes", code=code)
    counter = step_counter(session)
    how, call = "call self.log every {} steps instead of in every step", 'self.log("train_loss", loss)'
    if _writes_steps(session) or (session.settings.trainer.loggers and not is_collecting):
        how = "pass values to the logger every {} steps instead of calling self.log in every step"
        call = 'self.logger.log_metrics({"train_loss": loss.item()}, self.global_step)'
    return fix(
        how.format(LOG_EVERY_STEPS),
        "minutes",
        code=(
            f"if self.{counter if counter == 'global_step' else f'trainer.{counter}'} % {LOG_EVERY_STEPS} == 0:\n"
            f"    {call}{_EPOCH_MEAN}"
        ),
    )


def _how(interval: int | None, is_collecting: bool) -> str:
    if is_collecting:
        return ", mostly in self.log, which collects values in every step"
    return f" every {interval} steps" if interval and interval > 1 else " in every step" if interval else ""
