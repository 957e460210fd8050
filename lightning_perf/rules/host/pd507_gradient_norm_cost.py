"""PD507: clipping gradients takes a share of the time."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import claims_of, is_cpu_run, named_by_kind, share_of, steady_of
from lightning_perf.rules.thresholds import USER_LINE_MIN_SHARE
from lightning_perf.rules.user_lines import check_is_sampled, lines_of
from lightning_perf.rules.wording import duration, percent

HOOK = "configure_gradient_clipping"


@rule("PD507", "gradient-norm-cost", explains=("PD304",))
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    times = named_by_kind(steady, "loop").get("gradient_clipping", [])
    share = share_of(times)
    if share < USER_LINE_MIN_SHARE:
        return None
    check_is_sampled(session)
    own = next((line for line in lines_of(session, "optimizer") if line.line.entry == HOOK), None)
    if own is None:
        return None
    each_s = sum(time.total_s for time in times) / max(1, sum(time.n_calls for time in times))
    foreach = "" if is_cpu_run(session) else ", foreach=True"
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is spent clipping gradients, {duration(each_s)} per call, in "
            f"{own.where}."
        ),
        evidence=fact(
            "share of the time clipping gradients",
            share,
            "fraction",
            USER_LINE_MIN_SHARE,
            sum(time.n_calls for time in times),
        ),
        prescriptions=fix(
            "clip all gradients with one call, and use the norm that it returns",
            "minutes",
            "numerics",
            code=f"norm = torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm{foreach})",
        ),
        claims=claims_of(times, steady.span_s),
        basis="at most the time of clipping; no gain if it is one call already",
        confidence="medium",
    )
