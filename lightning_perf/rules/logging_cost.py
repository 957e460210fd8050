"""Distinguish a slow logger (PD505) from one that is called too often (PD502)."""

import math
from collections.abc import Iterable

from lightning_perf.records import NamedTime, Prescription, Session, StageTimes

from .findings import fix, trainer_fix
from .signals import call_s
from .thresholds import (
    LOG_EVERY_STEPS,
    LOG_FREQUENT_STEPS,
    LOG_MAX_STEPS,
    LOG_TARGET_SHARE,
    MANY,
    SLOW_CALL_S,
    SLOW_FREQUENT_CALL_S,
)


def slow_call_s(session: Session) -> float:
    """Return the threshold in seconds above which a call counts as slow in this run."""
    interval = session.settings.trainer.log_every_n_steps
    return SLOW_FREQUENT_CALL_S if interval is not None and interval < LOG_FREQUENT_STEPS else SLOW_CALL_S


def slow_calls(times: Iterable[NamedTime], session: Session) -> list[NamedTime]:
    """Return the methods whose single calls are slow."""
    bound_s = slow_call_s(session)
    return [time for time in times if call_s(time) >= bound_s]


def longer_interval(n_steps: int, share: float, session: Session) -> int:
    """Return the interval to recommend if logging every ``n_steps`` steps takes this share of the time.

    The run then writes at least ``MANY`` rows, unless Lightning's default writes fewer.
    """
    longest, n_planned = int(LOG_MAX_STEPS), _planned_steps(session)
    if n_planned:
        longest = min(longest, max(int(LOG_EVERY_STEPS), 10 * (n_planned // (10 * MANY))))
    return min(max(LOG_EVERY_STEPS, 10 * math.ceil(n_steps * share / LOG_TARGET_SHARE / 10)), longest)


def _planned_steps(session: Session) -> int | None:
    """Return the optimizer steps of the whole run, the same in all of its diagnoses; None if unknown."""
    trainer, run = session.settings.trainer, session.run
    if run.status == "finished":
        return run.n_optimizer_steps
    if (trainer.max_steps or 0) > 0:
        return trainer.max_steps
    n_epochs = max(trainer.max_epochs or 0, 0)
    return (run.n_optimizer_steps or 0) * n_epochs // run.n_epochs if run.n_epochs else None


def n_rows_of(times: Iterable[NamedTime]) -> int:
    """Return the number of rows that a logger wrote."""
    return max((time.n_calls for time in times if time.hook == "log_metrics"), default=0)


def step_rows_part(steady: StageTimes, interval: int, n_rows: int) -> float:
    """Return the fraction of a logger's rows that steps write, one every ``interval`` steps; epochs write the rest."""
    return min(1.0, (steady.n_span_steps + steady.n_warmup_steps) / (max(1, interval) * max(1, n_rows)))


def log_once(session: Session) -> Prescription | None:
    """Recommend to log once per run of an evaluation; None in fit.

    Lightning's evaluation loops pass a row to the loggers in each batch, whatever ``log_every_n_steps`` is, and
    ``global_step`` does not move in them.
    """
    stage = session.run.stage
    if stage == "fit":
        return None
    name = {"validate": "validation"}.get(stage, stage)
    return fix(
        f"call self.log once, in on_{name}_epoch_end, instead of in every batch",
        "minutes",
        code=(
            f"self.losses.append(loss)  # in {name}_step\n"
            f'self.log("{name}_loss", torch.stack(self.losses).mean())  # in on_{name}_epoch_end'
        ),
    )


def log_every(n_steps: int) -> Prescription:
    """Recommend a value of ``log_every_n_steps``."""
    return trainer_fix(f"set log_every_n_steps={n_steps}", treatment="log-every-n", log_every_n_steps=n_steps)
