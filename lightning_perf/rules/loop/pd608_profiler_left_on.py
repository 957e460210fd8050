"""PD608: the Trainer's profiler is on in a long run, or takes a share of the time."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import (
    WHY_NOT_MEASURED,
    fact,
    how_to_measure,
    make_finding,
    removal_finding,
    trainer_fix,
)
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import claims_of, share_of, steady_of
from lightning_perf.rules.thresholds import LOW_SHARE, PROFILED_MIN_STEPS
from lightning_perf.rules.wording import percent

CHEAP = ("SimpleProfiler",)
"""Profilers that take time only where an action begins and ends, which is timed."""

_FIX = trainer_fix(
    "remove profiler=... from the Trainer once you have the profile", treatment="profiler-off", profiler=None
)


@rule("PD608", "profiler-left-on", is_host_time=True)
def check(session: Session) -> Finding | None:
    """Compare the time in the profiler with the threshold, and the steps of a run in which it also slows other code."""
    steady = steady_of(session)
    name = session.settings.trainer.profiler
    if name is None:
        return None
    own = [time for time in steady.named if time.kind == "profiler"]
    share, n_steps = share_of(own), session.run.n_steps
    slows_more = "" if name in CHEAP else "; it also slows the code between them, which is not measured"
    evidence = (
        fact("profiler", name),
        fact("share of the time in the profiler", share, "fraction", LOW_SHARE, sum(time.n_calls for time in own)),
        fact("steps of the run", n_steps, "count", PROFILED_MIN_STEPS),
    )
    if share >= LOW_SHARE:
        return removal_finding(
            steady,
            summary=(
                f"{percent(share)} of training time is spent in {name}, which records the begin and end of every "
                f"action{slows_more}."
            ),
            evidence=evidence,
            prescriptions=_FIX,
            timed=claims_of(own, steady.span_s),
            left=0.0,
        )
    if name in CHEAP or n_steps < PROFILED_MIN_STEPS:
        return None
    return make_finding(
        severity="low",
        summary=f"{name} has recorded all {n_steps:,} steps and slows the code in them. {how_to_measure([_FIX])}",
        evidence=(*evidence, fact(WHY_NOT_MEASURED, "no step was timed without the profiler")),
        prescriptions=_FIX,
        confidence="medium",
    )
