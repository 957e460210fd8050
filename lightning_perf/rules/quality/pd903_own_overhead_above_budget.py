"""PD903: PerfDoctor's overhead exceeds its budget."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.thresholds import OVERHEAD_MIN_STEP_SHARE
from lightning_perf.rules.wording import duration, percent


@rule("PD903", "own-overhead-above-budget")
def check(session: Session) -> Finding | None:
    overhead = required(session.overhead, session.missing.get("overhead", "the overhead was not measured"))
    step_s = session.steady.step_s.p50 if session.steady is not None else 0.0
    is_noticeable = overhead.per_step_us * 1e-6 >= OVERHEAD_MIN_STEP_SHARE * step_s
    if not (overhead.per_step_us > overhead.budget_us and is_noticeable) and not overhead.backed_off:
        return None
    stopped = f" It stopped measuring {', '.join(overhead.backed_off)}." if overhead.backed_off else ""
    probe, budget = session.loader_probe, duration(overhead.budget_us * 1e-6)
    once = (
        f" ({duration(probe.wall_s)} for the loader probe, once per run)" if probe is not None and probe.wall_s else ""
    )
    costs_s = {
        "options=DoctorOptions(memory=False, device_stats=False)": overhead.per_step_us * 1e-6 * session.run.n_steps,
        "probe_data=False": probe.wall_s if probe is not None else 0.0,
        "schedule=None": sum(window.cost_s for window in session.windows),
    }
    return make_finding(
        severity="info",
        summary=(
            f"PerfDoctor takes {duration(overhead.per_step_us * 1e-6)} per step; its budget is {budget}. "
            f"Including {duration(overhead.reporting_s)} outside of steps{once}, "
            f"that is {percent(overhead.share)} of the run.{stopped}"
        ),
        evidence=(
            fact("overhead per step", overhead.per_step_us, "us", overhead.budget_us),
            fact("overhead ÷ run", overhead.share, "fraction"),
        ),
        prescriptions=fix(
            "measure less, or remove PerfDoctor once the diagnosis is known",
            "one line",
            code=f"PerfDoctor({max(costs_s, key=lambda option: costs_s[option])})",
        ),
    )
