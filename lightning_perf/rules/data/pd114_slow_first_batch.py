"""PD114: the first batch of an epoch takes much longer than a typical one."""

import statistics

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, least_mean, timed_finding
from lightning_perf.rules.loader_signals import n_epochs_in_one
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import loaders_of, steady_of
from lightning_perf.rules.thresholds import FIRST_BATCH_MIN_RATIO, FIRST_BATCH_MIN_SHARE
from lightning_perf.rules.wording import duration, number_of, percent
from lightning_perf.rules.worker_starts import first_waits_s, n_boundaries, restarting_loader, start_waits


@rule("PD114", "slow-first-batch")
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    fetch, waits = steady.fetch, start_waits(steady)
    if fetch is None or not waits:
        raise Skip("no epoch has been followed by another one yet")
    loader = loaders_of(session)[0]
    if restarting_loader(session) is not None:
        return None  # PD104 applies, or PD603 if the loader is created again: workers start again.
    ended = session.epochs[:-1] or session.epochs  # the last epoch may have just started
    epochs = [epoch.wall_s for epoch in ended if epoch.wall_s > 0]
    if not epochs:
        raise Skip("no epoch has ended yet")
    first_s = statistics.median(fetch.first_s)
    share = first_s / statistics.median(epochs)
    if first_s < FIRST_BATCH_MIN_RATIO * fetch.wait_s.p50 or share < FIRST_BATCH_MIN_SHARE:
        return None
    times, seconds = n_epochs_in_one(session), first_waits_s(session, steady)
    typical_s, low_s, basis = fetch.wait_s.p50, 0.0, "at best nothing of it remains"
    if loader.is_iterable or loader.num_workers is None:  # longer epochs run ``__iter__`` as often, or are not possible
        whose = "dataset's" if loader.is_iterable else "loader's"
        advice = fix(f"do once what the {whose} __iter__ does before its first sample, or make it faster", "hours")
    elif typical_s == 0:
        advice = fix(
            "make the batch once, if its samples never change",
            "minutes",
            "semantics",
            code=(
                "trainer.fit(model, [next(iter(train_loader))])"
                if session.run.has_trainer
                else "loader = [next(iter(loader))]  # before the first epoch"
            ),
        )
    else:
        advice = fix(
            f"do the dataset's start-up work once, in its constructor, or put {times} epochs into one",
            "minutes",
            "semantics",
            code=f"DataLoader(torch.utils.data.ConcatDataset([dataset] * {times}), ...)",
        )
        if loader.num_workers:  # else the sampler may take the time, which grows with the length of the epoch
            low_s = (1 - 1 / times) * min(seconds, n_boundaries(session) * least_mean(waits))
            basis = f"at most one in {times} remains"
    return timed_finding(
        steady,
        summary=(
            f"The first batch of an epoch takes {duration(first_s)}, {percent(share)} of the epoch. "
            + (f"A typical batch takes {duration(typical_s)}." if typical_s > 0 else "An epoch has one batch.")
        ),
        evidence=(
            fact("first batch of an epoch", first_s, "s", FIRST_BATCH_MIN_RATIO * fetch.wait_s.p50, len(waits)),
            fact("share of the epoch", share, "fraction", FIRST_BATCH_MIN_SHARE),
        ),
        prescriptions=advice,
        claims={"epoch_boundary": seconds},
        low_s=low_s,
        basis=f"{number_of(len(waits), 'first batch', 'first batches')} timed; {basis}",
        confidence="medium",
    )
