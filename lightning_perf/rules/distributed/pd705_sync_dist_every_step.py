"""PD705: metrics are reduced over all ranks in every step."""

from lightning_perf.records import Finding, RankSummary, Session
from lightning_perf.rules.findings import fact, fix, timed_finding, uncertainty_s
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import (
    check_has_ranks,
    claims_of,
    own_summary,
    phase_s,
    share_of,
    steady_of,
    summaries_of,
)
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import percent


@rule("PD705", "sync-dist-every-step", explains=("PD502",))
def check(session: Session) -> Finding | None:
    check_has_ranks(session)
    reason = session.missing.get("settings.trainer.sync_dist_on_step", "no step logged a metric")
    if not required(session.settings.trainer.sync_dist_on_step, reason):
        return None
    steady = steady_of(session)
    reducing = [one for one in steady.named if one.name == "sync_dist"]
    # Named times include the reductions between epochs: limit the share to that of logging in steps.
    share = min(share_of(reducing), phase_s(steady, "logging") / steady.span_s)
    if share < LOW_SHARE:
        return None
    waited_s, reducing_s = _waited_s(session), share * steady.span_s
    return timed_finding(
        steady,
        summary=(
            "Metrics are reduced over all ranks in every step (self.log with on_step=True, sync_dist=True), which "
            f"takes {percent(share)} of training time."
        ),
        evidence=(
            fact(
                "share of the time reducing metrics", share, "fraction", LOW_SHARE, sum(one.n_calls for one in reducing)
            ),
            fact("sync_dist in each step", True),
        ),
        prescriptions=fix(
            "reduce metrics once per epoch: on_step=False, on_epoch=True; log without sync_dist in steps",
            "one line",
            code='self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)',
        ),
        claims=claims_of(reducing, steady.span_s),
        low_s=(
            0.0 if waited_s is None else reducing_s - uncertainty_s(steady, reducing_s) - waited_s * steady.n_span_steps
        ),
        basis="the timed reductions; waits for slower ranks may remain",
    )


def _waited_s(session: Session) -> float | None:
    """Return the most seconds per step that this rank waits for the slowest one; None if not known."""
    summaries, own = summaries_of(session), own_summary(session)
    if own is None or len(summaries) < session.run.world_size or any("compute" not in one.parts_s for one in summaries):
        return None
    return max(_work_s(one) for one in summaries) - _work_s(own)


def _work_s(rank: RankSummary) -> float:
    return rank.parts_s.get("data", 0.0) + rank.parts_s.get("compute", 0.0)
