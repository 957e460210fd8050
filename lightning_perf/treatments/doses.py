"""Treatments as a user names them: ``loader-workers=4,precision-bf16``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lightning_perf.errors import ConfigError
from lightning_perf.records import Session

from .registry import find
from .treatment import Treatment


class Dose(NamedTuple):
    """A treatment with its value.

    Attributes:
        treatment: The treatment.
        value: None for the default.
        text: As it is written: ``"loader-workers=4"``.
    """

    treatment: Treatment
    value: Any
    text: str


def parse(text: str) -> Dose:
    """Reads ``"precision-bf16"`` or ``"loader-workers=4"``.

    Raises:
        ConfigError: No such treatment, or not a value of it.
    """
    treatment_id, separator, value = text.strip().partition("=")
    treatment = find(treatment_id.strip())
    given = value.strip() if separator else None
    return Dose(treatment, treatment.parse_value(given), treatment.id if given is None else f"{treatment.id}={given}")


def parse_all(text: str | Iterable[str]) -> tuple[Dose, ...]:
    """Reads several, given as one text with commas between them or as one text each.

    Raises:
        ConfigError: One of them is no treatment, or they cannot be applied together.
    """
    texts = text.split(",") if isinstance(text, str) else list(text)
    doses = tuple(parse(one) for one in texts if one.strip())
    check_together(doses)
    return doses


def with_default(dose: Dose, session: Session | None) -> Dose:
    """The dose with the value that the session calls for, where none was given."""
    if dose.value is not None:
        return dose
    value = dose.treatment.default_value(session)
    if value is None:
        return dose
    return Dose(dose.treatment, value, f"{dose.treatment.id}={value}")


def check_together(doses: Sequence[Dose], session: Session | None = None) -> None:
    """Checks that treatments can be applied at once.

    Args:
        doses: The treatments.
        session: The training they are for; some only conflict with what is set there.

    Raises:
        ConfigError: One is named twice, or two exclude one another.
    """
    ids = [dose.treatment.id for dose in doses]
    for treatment_id in ids:
        if ids.count(treatment_id) > 1:
            raise ConfigError(f"{treatment_id} is named {ids.count(treatment_id)} times; expected each treatment once")
    for dose in doses:
        for other in doses:
            if other.treatment.id in dose.treatment.conflicts:
                raise ConfigError(f"{dose.text} and {other.text} exclude one another; leave one of them out")
    _check_clipping(ids, session)


def _check_clipping(ids: Sequence[str], session: Session | None) -> None:
    """A fused optimizer takes the loss scale out itself, after Lightning would have to clip: it refuses."""
    if session is None or "fused-optimizer" not in ids or session.settings.trainer.gradient_clip_val is None:
        return
    if "precision-fp16" in ids or session.settings.trainer.precision == "16-mixed":
        raise ConfigError(
            "fused-optimizer cannot be applied to a training in fp16 that clips gradients: Lightning refuses "
            "the three together; use precision-bf16, or leave one of them out"
        )
