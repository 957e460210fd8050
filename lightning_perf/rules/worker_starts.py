"""What workers cost apart from batches: their starts in each epoch, compared with a loader without workers."""

from statistics import fmean

from lightning_perf.records import LoaderSettings, Session, StageTimes

from .findings import least_mean
from .signals import loaders_of, phase_s
from .user_lines import lines_of


def in_process_of(session: Session, stage: StageTimes) -> tuple[float | None, str]:
    """Return the seconds to make a batch without workers and how they were measured, or None and the reason."""
    fetch, probe = stage.fetch, session.loader_probe
    if fetch is not None and fetch.in_process_batch_s is not None:
        return fetch.in_process_batch_s, fetch.in_process_basis
    alone = probe.point_at(0) if probe is not None else None
    if alone is not None:
        return alone.batch_s, "loader probe"
    return None, fetch.in_process_basis if fetch is not None else "no fetch was timed"


def start_waits(stage: StageTimes) -> tuple[float, ...]:
    """Return the extra seconds of each later epoch's first batch compared with a typical batch."""
    fetch = stage.fetch
    return tuple(max(0.0, first_s - fetch.wait_s.p50) for first_s in fetch.first_s) if fetch is not None else ()


def restarting_loader(session: Session) -> LoaderSettings | None:
    """Return the training loader whose workers start again in each epoch; None if there is none."""
    return next((each for each in loaders_of(session) if each.num_workers and each.persistent_workers is False), None)


def first_waits_s(session: Session, stage: StageTimes) -> float:
    """Return the seconds of the span by which first batches took longer than typical ones."""
    waits = start_waits(stage)
    return min(n_boundaries(session) * fmean(waits), phase_s(stage, "epoch_boundary")) if waits else 0.0


def iterator_s(session: Session, stage: StageTimes) -> float:
    """Return the seconds in which iterators of later epochs were made, without the user's lines in them."""
    timed_s = sum(time.total_s for time in stage.named if (time.name, time.hook) == ("train_dataloader", "iter"))
    lines_s = sum(time.seconds for time in lines_of(session, "epoch_boundary"))
    return max(0.0, min(timed_s, phase_s(stage, "epoch_boundary")) - lines_s)


def worker_start_s(session: Session, stage: StageTimes) -> float:
    """Return the seconds of the span that workers took to end and start again, up to each epoch's first batch."""
    if restarting_loader(session) is None:
        return 0.0
    return min(first_waits_s(session, stage) + iterator_s(session, stage), phase_s(stage, "epoch_boundary"))


def least_start_s(session: Session, stage: StageTimes) -> float:
    """Return the part of `worker_start_s` that is saved for certain without restarts, after which batches are made."""
    made_s, _ = in_process_of(session, stage)
    waits = start_waits(stage)
    first_s = n_boundaries(session) * (least_mean(waits) - made_s) if waits and made_s is not None else 0.0
    return min(max(0.0, first_s) + iterator_s(session, stage), worker_start_s(session, stage))


def n_boundaries(session: Session) -> int:
    """Return the number of epoch boundaries."""
    n_kept = sum(epoch.boundary_s is not None for epoch in session.epochs) or max(0, len(session.epochs) - 1)
    return n_kept + max(0, session.run.n_epochs - len(session.epochs))  # a session holds only the last epochs
