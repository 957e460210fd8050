"""PD507: clipping gradients takes a share of the time."""

from lightning_perf.records import Finding, HostLine, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import call_s, claims_of, is_cpu_run, named_by_kind, share_of, steady_of
from lightning_perf.rules.thresholds import HOST_LINE_MIN_STEP_S, USER_LINE_MIN_SHARE
from lightning_perf.rules.user_lines import check_is_sampled, is_collecting, is_logging, is_metric, lines_of
from lightning_perf.rules.wording import duration, percent

HOOK = "configure_gradient_clipping"


@rule("PD507", "gradient-norm-cost", explains=("PD304", "PD501", "PD511"), is_host_time=True)
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    times = named_by_kind(steady, "loop").get("gradient_clipping", [])
    share = share_of(times)
    if share < USER_LINE_MIN_SHARE:
        return None
    check_is_sampled(session)
    own = [time for time in lines_of(session, "optimizer") if time.line.entry == HOOK]
    if not own:
        return None
    removed = [time for time in own if not _stays(session, time.line)]
    each_s = call_s(*times)
    foreach = "" if is_cpu_run(session) else ", foreach=True"
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is spent clipping gradients, {duration(each_s)} per call, in "
            f"{own[0].where}."
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
        low_s=sum(time.low_s for time in removed),
        basis="at least its lines outside torch operators, by stack samples; at most all time of clipping",
        confidence="high" if steady.step_s.mean >= HOST_LINE_MIN_STEP_S else "medium",
    )


def _stays(session: Session, line: HostLine) -> bool:
    """Return whether a line does something else than clipping, or clips by one call already."""
    is_one_call = line.call.endswith(("clip_gradients", "clip_grad_norm_", "clip_grad_value_"))
    return is_one_call or is_logging(line) or is_metric(line) or is_collecting(session, line)
