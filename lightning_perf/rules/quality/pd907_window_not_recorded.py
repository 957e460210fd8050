"""PD907: a profiler window recorded no events, or failed."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, unsigned_finding
from lightning_perf.rules.rule import Skip, rule


@rule("PD907", "window-not-recorded")
def check(session: Session) -> Finding | None:
    """Report windows that were not recorded."""
    if not session.windows:
        raise Skip("no profiler window was opened")
    lost = [window for window in session.windows if window.status != "recorded"]
    if not lost:
        return None
    return unsigned_finding(
        severity="info",
        summary=_summary(len(lost), len(session.windows)),
        evidence=(fact(f"window at step {window.first_step}: {window.status}", window.reason) for window in lost),
    )


def _summary(n_lost: int, n: int) -> str:
    if n == 1:
        return "The profiler window is empty."
    return f"{n_lost} of {n} profiler windows {'is' if n_lost == 1 else 'are'} empty."
