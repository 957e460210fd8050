"""PD601: validation takes a large share of training time."""

import math
from typing import Any

from lightning_perf.records import STEP_PHASES, Finding, Prescription, Session
from lightning_perf.rules.findings import fact, fix, optional_fact, removal_finding, trainer_fix
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.thresholds import (
    EXPLAINED_PART,
    VALIDATION_MAX_EPOCHS,
    VALIDATION_MIN_SHARE,
    VALIDATION_TARGET_RATIO,
)
from lightning_perf.rules.user_lines import is_metric, outer_lines_of
from lightning_perf.rules.wording import percent, site_of


@rule("PD601", "validation-heavy", line_of=())
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    if session.run.stage != "fit":
        raise Skip(f"only fit has a validation loop, this is {session.run.stage}")
    validation_s = phase_s(steady, "validation")
    share = validation_s / steady.span_s
    if share < VALIDATION_MIN_SHARE:
        return None
    ratio = validation_s / max(steady.span_s - validation_s, 1e-9)
    trainer = session.settings.trainer
    flags, left, left_least = _less_often(session, ratio)
    fewer = _fewer_batches(session, left)
    is_by_time = session.run.has_trainer and trainer.val_check_interval is None
    if is_by_time:
        left_least = 0.0
    elif not flags and fewer is not None:
        left, left_least = 1 - (1 - fewer[1]) * _part_in_batches(session), fewer[1]
    elif not flags:
        left = left_least = 1.0
    return removal_finding(
        steady,
        summary=f"{percent(share)} of training time is validation.",
        evidence=(
            fact("validation, share of the time", share, "fraction", VALIDATION_MIN_SHARE),
            optional_fact("val_check_interval", trainer.val_check_interval),
            optional_fact("check_val_every_n_epoch", trainer.check_val_every_n_epoch),
        ),
        prescriptions=(
            _LONGER_TIME if is_by_time else _less_often_fix(flags) if flags else None,
            _fewer_batches_fix(fewer[0], is_first=not (flags or is_by_time)) if fewer is not None else None,
            _once_per_validation(session, validation_s),
        ),
        timed={"validation": validation_s},
        left=left,
        left_least=left_least,
    )


_LONGER_TIME = fix(
    "set a longer time as val_check_interval: checkpoints and early stopping that monitor validation are then updated "
    "less often",
    "one line",
    "semantics",
)


def _once_per_validation(session: Session, validation_s: float) -> Prescription | None:
    """Recommend to move a function out of ``validation_step`` that takes most of validation, unless it is the model."""
    line = next(iter(outer_lines_of(session, "validation")), None)
    if line is None or line.line.entry != "validation_step" or line.seconds < EXPLAINED_PART * validation_s:
        return None
    call = line.line.call
    if not call or is_metric(line.line) or call.rpartition(".")[2] in ("forward", "__call__", "training_step"):
        return None
    at = site_of(line.line.file, line.line.line)
    return fix(
        f"if {call} ({at}) does not depend on the batch, call it once per validation",
        "minutes",
        code="def on_validation_epoch_start(self):\n    self.kept = ...  # and use self.kept in validation_step",
    )


def _less_often_fix(flags: dict[str, Any]) -> Prescription:
    setting = ", ".join(f"{key}={value}" for key, value in flags.items())
    return trainer_fix(
        f"set {setting}: checkpoints and early stopping that monitor validation are then updated less often",
        "semantics",
        "val-less-often",
        **flags,
    )


def _fewer_batches_fix(limit: float | int, is_first: bool) -> Prescription:
    """Recommend fewer batches: first if the run is too short to validate less often, else instead of that.

    The alternative is no Trainer flag of the session, because both together would validate far less than either.
    """
    why = (
        ": the run is too short to validate less often"
        if is_first
        else " instead of validating less often: as many validations, on fewer batches"
    )
    return fix(
        f"set limit_val_batches={limit}{why}",
        "one line",
        "semantics",
        treatment="limit-val-batches",
        trainer_flags={"limit_val_batches": limit} if is_first else {},
        code=f"Trainer(..., limit_val_batches={limit})",
        value=str(limit),
    )


def _fewer_batches(session: Session, part: float) -> tuple[float | int, float] | None:
    """Return ``limit_val_batches`` for a part of validation, at least one batch, and the part that then remains.

    None if there is no lower limit, or no Trainer to set it. Lightning refuses a fraction that leaves no batch of a
    loader.
    """
    if not session.run.has_trainer:
        return None
    now = session.settings.trainer.limit_val_batches
    if isinstance(now, int):
        limit: float | int = max(1, round(part * now))
    else:
        now = now or 1.0
        lengths = [one.n_batches for one in session.settings.loaders if one.stage == "val" and one.n_batches]
        limit = max(0.01, round(part * now, 2), *(math.ceil(100 / length) / 100 for length in lengths))
    return (limit, limit / now) if limit < now else None


def _part_in_batches(session: Session) -> float:
    """Return the fraction of validation time that is proportional to its number of batches; starting workers is not."""
    found = session.validation
    return min(1.0, phase_s(found, *STEP_PHASES) / found.span_s) if found is not None and found.span_s > 0 else 1.0


def _less_often(session: Session, ratio: float) -> tuple[dict[str, Any], float, float]:
    """Return the flags to set and the part of validation that remains, at most and at least.

    Returns no flags if the run is too short, or validates by time, with the part that limits its batches instead.
    """
    trainer = session.settings.trainer
    interval, every = trainer.val_check_interval, trainer.check_val_every_n_epoch or 1
    if isinstance(interval, float) and 0 < interval < 1:
        n_now = math.floor(1 / interval + 1e-9)  # with 0.6, Lightning validates once per epoch
        if n_now > 1:
            return {"val_check_interval": 1.0}, 1 / n_now, 1 / n_now
    wanted = min(VALIDATION_MAX_EPOCHS, max(2, math.ceil(ratio / VALIDATION_TARGET_RATIO)))
    n_batches, n_epochs = _length(session)
    left_least = 0.0
    if session.run.has_trainer and interval is None:  # a time
        return {}, 1 / wanted, 1 / wanted
    if isinstance(interval, int):
        times = min(wanted, n_batches // (interval * every))
        left = _batches_apart(session, interval, every) / max(1, interval * every * times)
        flags: dict[str, Any] = {"val_check_interval": int(interval * every * times)}
        if trainer.check_val_every_n_epoch is not None:  # count batches over all epochs, which may be shorter
            flags["check_val_every_n_epoch"] = None
    else:
        times = min(wanted, n_epochs // every)
        left = 1 / max(1, times)
        if times >= 2 and n_epochs < math.inf:  # the last epochs may end without a validation
            left_least = (n_epochs // (every * times)) / (n_epochs // every)
        flags = {"check_val_every_n_epoch": int(every * times)}
    return (flags, min(1.0, left), min(left, left_least or left)) if times >= 2 else ({}, 1 / wanted, 1 / wanted)


def _batches_apart(session: Session, interval: int, every: int) -> float:
    """Return the mean number of batches from one validation to the next; the count may begin again in each epoch."""
    each = _batches_per_epoch(session)
    if session.settings.trainer.check_val_every_n_epoch is None or each is None or each < interval:
        return interval * every
    return each / (each // interval) * every


def _batches_per_epoch(session: Session) -> int | None:
    """Return the batches of an epoch; None if not known."""
    return next((one.n_batches for one in session.settings.loaders if one.stage == "train" and one.n_batches), None)


def _length(session: Session) -> tuple[float, float]:
    """Return the batches and epochs of the run by its flags; infinite if not limited."""
    trainer = session.settings.trainer
    each = _batches_per_epoch(session)
    n_epochs = float(trainer.max_epochs) if trainer.max_epochs and trainer.max_epochs > 0 else math.inf
    n_batches = math.inf
    if trainer.max_steps and trainer.max_steps > 0:
        n_batches = float(trainer.max_steps * (trainer.accumulate_grad_batches or 1))
    if each is not None:
        n_batches = min(n_batches, n_epochs * each)
        n_epochs = min(n_epochs, n_batches / each)
    return n_batches, n_epochs
