"""Optimizers, and the time of their steps."""

from lightning_perf.records import OptimizerSettings, Session

from .replay_signals import replayed
from .rule import Skip
from .signals import is_cpu_run, named_by_kind, phase_s, share_of, steady_of


def optimizers_of(session: Session) -> tuple[OptimizerSettings, ...]:
    """Return the optimizers; raise Skip if they are not known."""
    model = session.settings.model
    if model is None or not model.optimizers:
        raise Skip("the optimizers are not known")
    return model.optimizers


def optimizer_step(session: Session, treatment: str) -> tuple[float, float | None]:
    """Return the share of the time in the optimizers' steps, and the seconds of the steady span in them.

    Neither has schedulers, clearing and clipping. A replay with ``treatment`` limits the share. On a device the seconds
    are the device's; None if it was not timed.
    """
    steady = steady_of(session)
    timed = named_by_kind(steady, "loop")
    others = [*timed.get("zero_grad", []), *timed.get("gradient_clipping", [])]
    share = phase_s(steady, "optimizer") / steady.span_s - share_of(others)
    seen_s: float | None = share * steady.span_s
    if not is_cpu_run(session):  # the host may only queue the step; the device's time includes waiting for launches
        on_device_s = steady.device.phases.get("optimizer") if steady.device is not None else None
        seen_s = steady.n_span_steps * on_device_s if on_device_s else None
    result = replayed(session, treatment)
    if result is not None and result.before_s is not None:  # the step itself, without schedulers and clipping
        share = min(share, result.before_s * steady.n_span_steps / steady.span_s)
    return share, seen_s
