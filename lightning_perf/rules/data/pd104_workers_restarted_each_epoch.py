"""PD104: worker processes start again in every epoch."""

from statistics import fmean
from typing import NamedTuple

from lightning_perf.records import Finding, LoaderSettings, Prescription, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, least_mean, loader_fix, make_finding, timed_finding
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.thresholds import LOW_SHARE, RESTART_MIN_S
from lightning_perf.rules.user_lines import whole_lines_of
from lightning_perf.rules.wording import duration, number_of, percent
from lightning_perf.rules.worker_starts import (
    least_start_s,
    n_boundaries,
    restarting_loader,
    start_waits,
    worker_start_s,
)


def preflight(session: Session) -> Finding | None:
    loader = _restarting_loader(session)
    if loader is None or session.settings.trainer.max_epochs == 1:
        return None
    summary = f"Each epoch will likely start {number_of(loader.num_workers or 0, 'loader worker')} again."
    return make_finding("low", summary, (fact("persistent_workers", False),), (_prescription(loader),))


@rule("PD104", "workers-restarted-each-epoch", preflight=preflight, explains=("PD601",))
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    loader = _restarting_loader(session)
    n_validations, val_low_s, val_s = _validation_starts(session, steady)
    if loader is None and not val_s:
        return None
    waits, n = start_waits(steady), n_boundaries(session)
    if not waits or n == 0:
        if not val_s:
            raise Skip("no epoch has been followed by another one yet")
        loader = None  # its workers have started once
    spent_s = worker_start_s(session, steady) if loader is not None else 0.0
    share, each_s = (spent_s + val_s) / steady.span_s, spent_s / max(1, n)
    if share < LOW_SHARE and each_s < RESTART_MIN_S:
        return None
    low_s = least_start_s(session, steady) if loader is not None else val_low_s
    parts = [f"{duration(each_s)} per epoch until its first batch"] if loader is not None else []
    parts += [f"{duration(val_s / n_validations)} per validation"] if val_s else []
    n_workers = max(one.num_workers or 0 for one in ([loader] if loader is not None else loaders_of(session, "val")))
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is spent starting {number_of(n_workers, 'worker')} again"
            f"{' in every epoch' if loader is not None else ''}: {' and '.join(parts)}."
        ),
        evidence=(
            fact("share of the time starting workers", share, "fraction", LOW_SHARE, n or None),
            fact("starting workers, per epoch", each_s, "s", RESTART_MIN_S, n) if loader is not None else None,
            fact("starting workers, per validation", val_s / n_validations, "s", n=n_validations) if val_s else None,
            fact("first batch beyond a usual one", fmean(waits), "s", n=len(waits)) if loader is not None else None,
            fact("persistent_workers", False),
        ),
        prescriptions=(_prescription(loader) if loader is not None else None, _VALIDATION if val_s else None),
        claims={"epoch_boundary": spent_s, "validation": val_s},  # the wait for each first batch is in the former
        low_s=low_s,
        basis=(
            f"{number_of(len(waits), 'first batch', 'first batches')} timed; making one batch remains"
            if loader is not None
            else f"{number_of(n_validations, 'start')} timed"
        ),
    )


class _ValidationStarts(NamedTuple):
    """Starts of validation's workers in the steady span: how many, and the seconds that they took at least and at most.

    A first batch takes longer than a usual one since workers start, and since it has to be made. The latter takes at
    most as many batches' time as there are workers.
    """

    n: int
    low_s: float
    high_s: float


def _validation_starts(session: Session, stage: StageTimes) -> _ValidationStarts:
    """Return the starts of validation's workers; none if they persist, or if that is not known."""
    loaders = [one for one in session.settings.loaders if one.stage == "val" and one.num_workers]
    is_created_again = bool(session.settings.trainer.reload_dataloaders_every_n_epochs)
    if not loaders or is_created_again or any(one.persistent_workers is not False for one in loaders):
        return _ValidationStarts(0, 0.0, 0.0)
    if any(one.n_batches is None for one in loaders):  # then Lightning also fetches the first batch there
        return _ValidationStarts(0, 0.0, 0.0)
    found = [time for time in stage.named if (time.name, time.hook) == ("val_dataloader", "iter")]
    lines = whole_lines_of(session, ("validation",), lambda line: line.entry == "__iter__")  # a sampler's
    created_s = max(0.0, sum(time.share for time in found) * stage.span_s - sum(line.seconds for line in lines))
    n, validation = sum(time.n_calls for time in found), session.validation
    waits = start_waits(validation) if validation is not None else ()
    low_s = high_s = created_s
    if waits and validation is not None:
        made_s = max(one.num_workers or 0 for one in loaders) * validation.step_s.mean
        low_s += n * max(0.0, least_mean(waits) - made_s)
        high_s += n * fmean(waits)
    most_s = phase_s(stage, "validation")
    return _ValidationStarts(n, min(low_s, most_s), min(high_s, most_s))


def _restarting_loader(session: Session) -> LoaderSettings | None:
    if session.run.stage != "fit":
        raise Skip(f"only fit has epochs, this is {session.run.stage}")
    if session.settings.trainer.reload_dataloaders_every_n_epochs:
        return None
    if all(loader.num_workers is None for loader in loaders_of(session)):
        raise Skip("the number of workers is not known")
    return restarting_loader(session)


def _prescription(loader: LoaderSettings) -> Prescription:
    code = f"num_workers={loader.num_workers}, persistent_workers=True"
    summary = "set persistent_workers=True on the train loader"
    return loader_fix(loader, summary, "loader-persistent", code, persistent_workers=True)


_VALIDATION = fix(
    "set persistent_workers=True on the val loader",
    "one line",
    code="DataLoader(..., persistent_workers=True)  # in val_dataloader",
)
