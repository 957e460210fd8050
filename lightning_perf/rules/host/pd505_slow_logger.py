"""PD505: single calls of a logger are slow."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, removal_finding
from lightning_perf.rules.logging_cost import (
    log_every,
    log_once,
    longer_interval,
    slow_call_s,
    slow_calls,
    step_rows_part,
)
from lightning_perf.rules.machine_signals import queueing_of
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import call_s, named_by_kind, share_of, steady_of
from lightning_perf.rules.thresholds import HOOK_MIN_SHARE, LOGGER_ROWS_PER_EPOCH
from lightning_perf.rules.wording import duration, percent


@rule("PD505", "slow-logger", needs_phase="logging", is_host_time=True, line_of=())
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    slow = {name: slow_calls(times, session) for name, times in named_by_kind(steady, "logger").items()}
    name, times = max(slow.items(), key=lambda item: share_of(item[1]), default=("", []))
    share = share_of(times)
    if share < HOOK_MIN_SHARE:
        return None
    worst = max(times, key=lambda time: time.share)
    known = session.settings.trainer.log_every_n_steps
    interval = known or 1
    wanted = longer_interval(interval, share, session)
    in_steps = max(0.0, 1 - LOGGER_ROWS_PER_EPOCH * session.run.n_epochs / max(1, worst.n_calls))
    in_steps = min(in_steps, step_rows_part(steady, interval, worst.n_calls))
    first, left, left_least = log_once(session), 1.0, 0.0
    if first is not None:
        left = 1 / max(1, worst.n_calls)
    elif in_steps > 0 and wanted > interval and known != 0:  # 0: steps pass no rows
        first, left, left_least = log_every(wanted), 1 - in_steps * (1 - interval / wanted), interval / wanted
    slower = fix(
        f"make {name} flush less often, and log to a local disk",
        "minutes",
        code='CSVLogger("logs", flush_logs_every_n_steps=500)' if name == "CSVLogger" else "",
    )
    return removal_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is spent in {name}.{worst.hook}, {duration(call_s(worst))} per call."
        ),
        evidence=(
            fact(f"share of the time in {name}", share, "fraction", HOOK_MIN_SHARE, worst.n_calls),
            fact(f"time per call of {name}.{worst.hook}", call_s(worst), "s", slow_call_s(session), worst.n_calls),
        ),
        prescriptions=(first, slower),
        timed={"logging": share * steady.span_s},
        left=left,
        left_least=left_least,
        queueing=queueing_of(session),  # behind threads that write for it
    )
