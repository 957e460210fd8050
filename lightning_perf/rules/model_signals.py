"""The model profile of one step, which rules use; functions raise Skip with the reason if it is missing."""

from __future__ import annotations

from lightning_perf.records import Bound, Ceilings, ModelProfile, Session

from .rule import Skip


def counted(session: Session) -> ModelProfile:
    """Return the profile of a step whose FLOPs were counted.

    Raises:
        Skip: The FLOPs of no step were counted.
    """
    profile = session.model_profile
    if profile is None or profile.forward_flops is None:
        raise Skip(session.missing.get("model_profile", "the model's FLOPs were not counted"))
    return profile


def ceilings_of(session: Session) -> Ceilings:
    """Return the measured ceilings of the device.

    Raises:
        Skip: They were not measured.
    """
    profile = session.model_profile
    if profile is None or profile.ceilings is None:
        raise Skip(session.missing.get("model_profile.ceilings", "the ceilings of the device were not measured"))
    return profile.ceilings


def bound_of(session: Session) -> Bound:
    """Return the bound of the profiled step, e.g. ``"launch"``.

    Raises:
        Skip: No step was profiled, or its bound is not known.
    """
    bound = counted(session).bound
    if bound is None:
        raise Skip(session.missing.get("model_profile.ceilings", "the bound of the step is not known"))
    return bound
