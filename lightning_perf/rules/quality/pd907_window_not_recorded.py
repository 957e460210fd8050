"""PD907: a profiler window recorded no events, or failed."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding
from lightning_perf.rules.rule import Skip, rule


@rule("PD907", "window-not-recorded")
def check(session: Session) -> Finding | None:
    if not session.windows:
        raise Skip("no profiler window was opened")
    lost = [window for window in session.windows if window.status != "recorded"]
    n = len(session.windows)
    if not lost:
        return None
    return make_finding(
        severity="info",
        summary=(
            f"{len(lost)} of {n} profiler windows {'was' if len(lost) == 1 else 'were'} not recorded."
            if n > 1
            else "The profiler window was not recorded."
        ),
        evidence=(fact(f"window at step {window.first_step}: {window.status}", window.reason) for window in lost),
    )
