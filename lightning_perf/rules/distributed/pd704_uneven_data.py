"""PD704: ranks get different amounts of data."""

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, timed_finding
from lightning_perf.rules.rank_signals import ranks_of
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.thresholds import LOW_SHARE
from lightning_perf.rules.wording import percent


@rule("PD704", "uneven-data")
def check(session: Session) -> Finding | None:
    ranks = ranks_of(session)
    batches = {one.rank: one.n_batches for one in ranks.summaries if one.n_batches is not None}
    samples = {one.rank: one.n_samples for one in ranks.summaries if one.n_samples is not None}
    counted, unit = (samples, "samples") if len(samples) == len(ranks.summaries) else (batches, "batches")
    if len(counted) < 2:
        raise Skip("the ranks did not complete an epoch")
    most, least = max(counted, key=counted.__getitem__), min(counted, key=counted.__getitem__)
    mean = sum(counted.values()) / len(counted)
    unevenness = 1 - mean / counted[most] if counted[most] else 0.0
    if unevenness < LOW_SHARE:
        return None
    steady = steady_of(session)
    claims = {name: unevenness * phase_s(steady, name) for name in ("forward", "backward", "data_wait", "transfer")}
    lost_share = sum(claims.values()) / steady.span_s
    return timed_finding(
        steady,
        summary=(
            f"Data is unevenly distributed: rank {most} gets {counted[most]:,} {unit} per epoch, rank {least} "
            f"{counted[least]:,}; the mean is {percent(unevenness)} below the maximum."
        ),
        evidence=(
            fact(
                f"{unit} of rank {most} above the mean, fraction of its own",
                unevenness,
                "fraction",
                LOW_SHARE,
                len(counted),
            ),
            fact(f"{unit} of rank {most}", counted[most], "count"),
            fact(f"{unit} of rank {least}", counted[least], "count"),
        ),
        prescriptions=_advice(session, min(batches.values(), default=None)),
        claims=claims,
        basis=f"at most the excess of the largest rank over the mean ({percent(lost_share)} of the time)",
        confidence="medium",
        method="modeled",
    )


def _advice(session: Session, n_batches: int | None) -> Prescription:
    """Recommend the same number of batches for each rank; ``n_batches`` are those of the rank with the fewest."""
    if any(one.is_iterable for one in session.settings.loaders if one.stage == "train"):  # it takes no sampler
        return fix(
            "distribute data evenly: files of equal size, or as many batches on each rank",
            "minutes",
            "semantics",
            trainer_flags={"limit_train_batches": n_batches} if n_batches else {},
            code=f"Trainer(..., limit_train_batches={n_batches})" if n_batches else "",
        )
    return fix(
        "distribute data evenly: a DistributedSampler, drop_last=True, files of equal size",
        "minutes",
        "semantics",
        loader_args={"drop_last": True},
        code="DataLoader(dataset, sampler=DistributedSampler(dataset, drop_last=True), drop_last=True)",
    )
