"""What rules read from the step whose arithmetic was counted."""

from __future__ import annotations

from lightning_perf.records import Bound, Ceilings, ModelProfile, Session

from .rule import Skip


def counted(session: Session) -> ModelProfile:
    """Return the model's arithmetic.

    Raises:
        Skip: No step was counted.
    """
    profile = session.model_profile
    if profile is None or profile.forward_flops is None:
        raise Skip(session.missing.get("model_profile", "the model's arithmetic was not counted"))
    return profile


def ceilings_of(session: Session) -> Ceilings:
    """Return what the device can do.

    Raises:
        Skip: It was not measured.
    """
    profile = session.model_profile
    if profile is None or profile.ceilings is None:
        raise Skip(session.missing.get("model_profile.ceilings", "the ceilings of the device were not measured"))
    return profile.ceilings


def bound_of(session: Session) -> Bound:
    """Return what limits the step that was counted.

    Raises:
        Skip: No step was counted, or what limits it is not known.
    """
    bound = counted(session).bound
    if bound is None:
        raise Skip(session.missing.get("model_profile.ceilings", "what limits the step is not known"))
    return bound
