"""PD604: the first step ends late."""

from lightning_perf.records import Finding, Prescription, Session, Severity
from lightning_perf.rules.findings import fact, fix, make_finding, optional_fact, trainer_fix
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.thresholds import (
    LONG_START_S,
    NOTICED_START_S,
    START_MIN_FIT_SHARE,
    START_MIN_REST_SHARE,
    TRY_OUT_START_S,
)
from lightning_perf.rules.wording import duration, percent

_ADVICE = {
    "loader_start": "make the first batch cheaper: lighter dataset constructors, fewer workers",
    "first_step": "keep the compiler's cache, so that kernels are compiled and tuned only once",
    "callbacks": "move work out of the setup and start hooks of callbacks",
}


@rule("PD604", "slow-start")
def check(session: Session) -> Finding | None:
    run = session.run
    if run.stage != "fit":
        raise Skip(f"the start is measured for fit, this is {run.stage}")
    reason = session.missing.get("run.time_to_first_step_s", "no step was finished")
    start_s = required(run.time_to_first_step_s, reason)
    share = start_s / run.wall_s if run.status != "running" and run.wall_s > 0 else 0.0
    is_long = start_s >= LONG_START_S
    if not is_long and (share < START_MIN_FIT_SHARE or start_s < NOTICED_START_S):
        return None
    rest_s = start_s - sum(run.startup.values())
    startup = dict(run.startup)
    if startup and rest_s >= START_MIN_REST_SHARE * start_s:
        startup["not attributed"] = rest_s
    parts = sorted(startup.items(), key=lambda part: -part[1])
    where = ", ".join(f"{name.replace('_', ' ')} {duration(seconds)}" for name, seconds in parts[:3])
    return make_finding(
        severity=_severity(start_s, share),
        summary=(
            f"The first step ended after {duration(start_s)}"
            + (f", {percent(share)} of the fit" if share >= START_MIN_FIT_SHARE else "")
            + (f": {where}." if where else ".")
        ),
        evidence=(
            fact("time to the end of the first step", start_s, "s", LONG_START_S),
            optional_fact("share of the fit", share or None, "fraction", START_MIN_FIT_SHARE),
            *(fact(f"of which {name.replace('_', ' ')}", seconds, "s") for name, seconds in parts),
        ),
        prescriptions=_prescription(parts[0][0] if parts else ""),
    )


def _severity(start_s: float, share: float) -> Severity:
    """Return the severity by the length of the start, which is outside the steady span."""
    if start_s >= LONG_START_S:
        return "medium" if share >= START_MIN_FIT_SHARE else "low"
    return "low" if start_s >= TRY_OUT_START_S else "info"


def _prescription(part: str) -> Prescription:
    if part == "sanity_validation":
        return trainer_fix("set num_sanity_val_steps=0", num_sanity_val_steps=0)
    unknown = "profile the start of the script, e.g. with python -X importtime and cProfile"
    return fix(_ADVICE.get(part, unknown), "minutes")
