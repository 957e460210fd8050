"""PD512: learning-rate schedulers take a share of the time."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, removal_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.user_lines import lines_of
from lightning_perf.rules.wording import duration, percent


@rule("PD512", "slow-scheduler", needs_phase="scheduler", is_host_time=True, line_of=())
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    seconds = phase_s(steady, "scheduler")
    share = seconds / steady.span_s
    if share < LOW_SHARE:
        return None
    each_s = seconds / steady.n_span_steps
    lines = lines_of(session, "scheduler")
    optimizers = session.settings.model.optimizers if session.settings.model is not None else ()
    crowded = next((one for one in optimizers if one.n_groups > one.n_distinct_groups > 0), None)
    return removal_finding(
        steady,
        summary=f"{percent(share)} of training time is spent in learning-rate schedulers, {duration(each_s)} per step.",
        evidence=fact("share of the time in learning-rate schedulers", share, "fraction", LOW_SHARE, steady.n_steps),
        prescriptions=(
            fix(
                "compute all learning rates once, and look them up",
                "minutes",
                code="rates = [rate(step) for step in range(n_steps + 1)]\nLambdaLR(optimizer, rates.__getitem__)",
            )
            if crowded is None
            else fix(
                f"join parameter groups with the same arguments: a scheduler computes the rate of each of the "
                f"{crowded.n_groups} groups",
                "minutes",
                "numerics",
            )
        ),
        timed={"scheduler": seconds},
        left=max(0.0, 1.0 - sum(line.low_s for line in lines) / seconds),
        left_least=max(0.0, 1.0 - sum(line.high_s for line in lines) / seconds) if lines else 0.0,
    )
