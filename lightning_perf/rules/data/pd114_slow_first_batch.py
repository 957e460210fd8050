"""PD114: the first batch of an epoch takes much longer than a usual one."""

from __future__ import annotations

import statistics

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_signals import start_waits
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.thresholds import FIRST_BATCH_MIN_RATIO, FIRST_BATCH_MIN_SHARE
from lightning_perf.rules.wording import duration, percent


@rule("PD114", "slow-first-batch")
def check(session: Session) -> Finding | None:
    """Compare first batches with usual ones."""
    steady = steady_of(session)
    fetch, waits = steady.fetch, start_waits(steady)
    if fetch is None or not waits:
        raise Skip("the first fetch of a second epoch has not been seen")
    loader = loaders_of(session)[0]
    if loader.num_workers and loader.persistent_workers is False:
        return None  # PD104
    epochs = [epoch.wall_s for epoch in session.epochs if epoch.wall_s > 0]
    if not epochs:
        raise Skip("no epoch has ended yet")
    first_s = statistics.median(fetch.first_s[1:])
    share = first_s / statistics.median(epochs)
    if first_s < FIRST_BATCH_MIN_RATIO * fetch.wait_s.p50 or share < FIRST_BATCH_MIN_SHARE:
        return None
    is_unkept = bool(loader.num_workers) and not loader.persistent_workers
    return timed_finding(
        steady,
        summary=(
            f"The first batch of an epoch takes {duration(first_s)}, {percent(share)} of the epoch. "
            f"A usual batch takes {duration(fetch.wait_s.p50)}."
        ),
        evidence=(
            fact("first batch of an epoch", first_s, "s", FIRST_BATCH_MIN_RATIO * fetch.wait_s.p50, len(waits)),
            fact("share of the epoch", share, "fraction", FIRST_BATCH_MIN_SHARE),
        ),
        prescriptions=(
            fix(
                "do the dataset's start-up work once, in its constructor"
                + (", and keep its workers: persistent_workers=True" if is_unkept else ""),
                "minutes",
                code="DataLoader(..., persistent_workers=True)" if is_unkept else "",
            ),
        ),
        claims={"epoch_boundary": min(sum(waits), phase_s(steady, "epoch_boundary"))},
        basis="at most the time by which first batches took longer than usual ones",
        confidence="medium",
    )
