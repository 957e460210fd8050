"""PD506: refreshing the progress bar takes a share of the time."""

import math

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, removal_finding, trainer_fix, unapplied
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import call_s, claims_of, named_by_kind, share_of, steady_of
from lightning_perf.rules.thresholds import LOG_TARGET_SHARE, LOW_SHARE, PROGRESS_LEFT_S, PROGRESS_MAX_STEPS
from lightning_perf.rules.wording import percent

_LIGHTNINGS = ("TQDMProgressBar", "RichProgressBar")


@rule("PD506", "progress-bar-cost", needs_phase="callbacks", is_host_time=True, line_of=())
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    name, times = next(iter(named_by_kind(steady, "progress_bar").items()), ("", []))
    share = share_of(times)
    if share < LOW_SHARE:
        return None
    known_rate = session.settings.trainer.progress_bar_refresh_rate  # None where a bar refreshes by time
    rate = known_rate or 1
    wanted = min(PROGRESS_MAX_STEPS, 10 * math.ceil(rate * share / LOG_TARGET_SHARE / 10))
    can_refresh_less = wanted > rate and known_rate is not None
    counted = PROGRESS_LEFT_S * steady.n_span_steps / (share * steady.span_s)
    does = "refreshes" if known_rate is not None else "is updated"
    often = f"every {rate} steps" if rate > 1 else "in every step"
    if can_refresh_less:
        advice = fix(
            f"set refresh_rate={wanted} (now {rate}) on the progress bar",
            "one line",
            treatment="progress-refresh",
            code=f"Trainer(..., callbacks=[{name}(refresh_rate={wanted})])",
            value=wanted,
        )
    else:
        other = f", or use TQDMProgressBar(refresh_rate={wanted})" if known_rate is None else ""
        instead = "" if name in _LIGHTNINGS else f" instead of {name} in the callbacks"
        advice = trainer_fix(
            f"set enable_progress_bar=False{instead}{other}",
            note=f"and no {name} in callbacks",
            enable_progress_bar=False,
        )
        if instead:  # Lightning refuses the flag beside a bar in its callbacks, where any but its own must be
            advice = unapplied(advice)
    return removal_finding(
        steady,
        summary=f"{percent(share)} of training time is spent in the progress bar: {name} {does} {often}.",
        evidence=(
            fact(f"share of the time in {name}", share, "fraction", LOW_SHARE, sum(time.n_calls for time in times)),
            fact("steps between refreshes", rate, "count") if known_rate is not None else None,
            *(fact(f"time per call of {name}.{time.hook}", call_s(time), "s", n=time.n_calls) for time in times[:2]),
        ),
        prescriptions=advice,
        timed=claims_of(times, steady.span_s),
        left=min(1.0, rate / wanted + counted) if can_refresh_less else 0.0,
        left_least=rate / wanted if can_refresh_less else 0.0,
    )
