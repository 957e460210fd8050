"""PD603: much time is spent between the last step of an epoch and the first of the next."""

from lightning_perf.records import Finding, LoaderSettings, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, removal_finding, trainer_fix
from lightning_perf.rules.line_signals import evidence_of
from lightning_perf.rules.loader_signals import n_epochs_in_one
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import phase_s, queued_s, steady_of
from lightning_perf.rules.thresholds import LOOP_MIN_SHARE, RELOAD_MIN_PART
from lightning_perf.rules.user_lines import collecting_s, lines_of
from lightning_perf.rules.wording import duration, number_of, percent
from lightning_perf.rules.worker_starts import (
    first_waits_s,
    iterator_s,
    n_boundaries,
    restarting_loader,
    worker_start_s,
)

HOOK = "train_dataloader"


@rule("PD603", "epoch-boundary-heavy", line_of=())
def check(session: Session) -> Finding | None:
    """Compare the time between epochs, without the garbage collector and waiting for the device, with the threshold."""
    steady = steady_of(session)
    if session.run.stage != "fit":
        raise Skip(f"only fit has epochs, this is {session.run.stage}")
    start_s = worker_start_s(session, steady)
    seconds = phase_s(steady, "epoch_boundary") - collecting_s(session, "epoch_boundary") - queued_s(steady)
    loader = restarting_loader(session)
    every = session.settings.trainer.reload_dataloaders_every_n_epochs
    if every and loader is not None and min(start_s, seconds) >= LOOP_MIN_SHARE * steady.span_s:
        return _restarting(session, steady, loader, every, seconds)
    seconds -= max(first_waits_s(session, steady), start_s)  # reported by PD104 and PD114
    share = seconds / steady.span_s
    if share < LOOP_MIN_SHARE:
        return None
    reloading = _reloading(session, steady, every)
    if reloading is not None:
        return reloading
    n_steps = [epoch.n_steps for epoch in session.epochs]
    is_iterable = any(one.is_iterable for one in session.settings.loaders if one.stage == "train")
    n, times = max(1, n_boundaries(session)), n_epochs_in_one(session)
    return removal_finding(
        steady,
        summary=(
            f"{percent(share)} of training time is spent between epochs, {duration(seconds / n)} per epoch"
            + (f" of {max(n_steps)} steps." if n_steps else ".")
        ),
        evidence=fact("share of the time between epochs", share, "fraction", LOOP_MIN_SHARE, n),
        prescriptions=fix(
            f"use fewer, longer epochs: repeat the dataset {times} times within one",
            "minutes",
            "semantics",
            code="" if is_iterable else f"DataLoader(torch.utils.data.ConcatDataset([dataset] * {times}), ...)",
        ),
        timed={"epoch_boundary": seconds},
        left=1 / times,
        left_least=0.0,
        confidence="medium",
    )


def _restarting(session: Session, steady: StageTimes, loader: LoaderSettings, every: int, seconds: float) -> Finding:
    """Return the finding if workers start again since their loader is created again; PD104 does not report these.

    At least the time to make iterators is saved; the rest may be the first batch, or something else between epochs.
    """
    setting = f"num_workers={loader.num_workers}, persistent_workers=True"
    return removal_finding(
        steady,
        summary=(
            f"{percent(seconds / steady.span_s)} of training time is spent between epochs: the train loader is created "
            f"again {_often(every)}, so its {number_of(loader.num_workers or 0, 'worker')} start again."
        ),
        evidence=(
            fact("share of the time between epochs", seconds / steady.span_s, "fraction", LOOP_MIN_SHARE),
            fact("share of the time starting workers", worker_start_s(session, steady) / steady.span_s, "fraction"),
            fact("persistent_workers", False),
        ),
        prescriptions=fix(
            f"set reload_dataloaders_every_n_epochs=0 (now {every}), and persistent_workers=True on the train loader",
            "one line",
            "semantics",
            trainer_flags={"reload_dataloaders_every_n_epochs": 0},
            loader_args={} if loader.why_not_changed() else {"persistent_workers": True},
            code=f"Trainer(..., reload_dataloaders_every_n_epochs=0)\n{loader.call}(..., {setting})",
        ),
        timed={"epoch_boundary": seconds},
        left=1 - min(1.0, iterator_s(session, steady) / seconds),
        left_least=0.0,
    )


def _often(every: int) -> str:
    return "in every epoch" if every == 1 else f"every {every} epochs"


def _reloading(session: Session, steady: StageTimes, every: int | None) -> Finding | None:
    """Return the finding if creating the loader again takes most of the time between epochs."""
    line = next((one for one in lines_of(session, "epoch_boundary") if one.line.entry == HOOK), None)
    boundary_s = phase_s(steady, "epoch_boundary")
    if not every or line is None or line.seconds < RELOAD_MIN_PART * boundary_s:
        return None
    return removal_finding(
        steady,
        summary=(
            f"{percent(boundary_s / steady.span_s)} of training time is spent between epochs, most of it in {HOOK}, "
            f"which creates the loader again {_often(every)}. {line.subject} spends "
            f"{percent(line.seconds / steady.span_s)} of the time{line.doing}."
        ),
        evidence=evidence_of(line, steady),
        prescriptions=trainer_fix(
            f"set reload_dataloaders_every_n_epochs=0 (now {every})", "semantics", reload_dataloaders_every_n_epochs=0
        ),
        timed={"epoch_boundary": boundary_s},
        left=1 - line.low_s / boundary_s,
        left_least=1 - line.high_s / boundary_s,
    )
