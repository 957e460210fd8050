"""All treatments, and treatments with values as users write them: ``loader-workers=4,precision-bf16``."""

import difflib
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lightning_perf.errors import ConfigError
from lightning_perf.records import MIXED_PRECISIONS, Session

from . import compile, compute, data, distributed, host, loop, memory, precision
from .treatment import Treatment

_MODULES = (data, compute, precision, compile, memory, host, loop, distributed)
_MIXED = frozenset({"precision-bf16", "precision-fp16"})
_UNIFORM = frozenset({"precision-bf16-true", "precision-32"})


@functools.cache
def all_treatments() -> tuple[Treatment, ...]:
    """Return every treatment, sorted by id: one of each class in ``_MODULES`` that has an id of its own."""
    values = (value for module in _MODULES for value in vars(module).values())
    kinds = {kind for kind in values if isinstance(kind, type) and issubclass(kind, Treatment) and "id" in vars(kind)}
    return tuple(sorted((kind() for kind in kinds), key=lambda each: each.id))


def find(treatment_id: str) -> Treatment:
    """Return the treatment with this id.

    Raises:
        ConfigError: No treatment has it; the message names similar ids.
    """
    known = {treatment.id: treatment for treatment in all_treatments()}
    if treatment_id not in known:
        close = difflib.get_close_matches(treatment_id, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(known)}"
        raise ConfigError(f"{treatment_id!r} is not a treatment: {hint}")
    return known[treatment_id]


class TreatmentSpec(NamedTuple):
    """A treatment with its value.

    Attributes:
        value: None for the default.
        text: As a user writes it: ``"loader-workers=4"``.
    """

    treatment: Treatment
    value: Any
    text: str


def parse(text: str) -> TreatmentSpec:
    """Parse ``"precision-bf16"`` or ``"loader-workers=4"``.

    Raises:
        ConfigError: There is no such treatment, or it does not accept the value.
    """
    treatment_id, separator, value = text.strip().partition("=")
    treatment = find(treatment_id.strip())
    given = value.strip() if separator else None
    shown = treatment.id if given is None else f"{treatment.id}={given}"
    return TreatmentSpec(treatment, treatment.parse_value(given), shown)


def parse_all(text: str | Iterable[str]) -> tuple[TreatmentSpec, ...]:
    """Parse several treatments, given as one text with commas or as several texts.

    Raises:
        ConfigError: One of them is not valid, or they cannot be combined.
    """
    texts = text.split(",") if isinstance(text, str) else list(text)
    specs = tuple(parse(one) for one in texts if one.strip())
    check_together(specs)
    return specs


def with_default(spec: TreatmentSpec, session: Session | None) -> TreatmentSpec:
    """Return the spec; without a value, with the one that the session recommends."""
    if spec.value is not None:
        return spec
    value = spec.treatment.default_value(session)
    if value is None:
        return spec
    return TreatmentSpec(spec.treatment, value, f"{spec.treatment.id}={value}")


def check_together(specs: Sequence[TreatmentSpec], session: Session | None = None) -> None:
    """Check that treatments can be combined.

    Raises:
        ConfigError: A treatment is named twice, two exclude one another, or the session's settings exclude both.
    """
    ids = [spec.treatment.id for spec in specs]
    for treatment_id in ids:
        if ids.count(treatment_id) > 1:
            raise ConfigError(f"{treatment_id} is named {ids.count(treatment_id)} times; expected each treatment once")
    for spec in specs:
        for other in specs:
            if other.treatment.id in spec.treatment.excluded_by(spec.value):
                raise ConfigError(f"{spec.text} and {other.text} exclude one another; leave one of them out")
    _check_clipping(ids, session)


def _check_clipping(ids: Sequence[str], session: Session | None) -> None:
    """Refuse what Lightning refuses: a fused optimizer removes the loss scale only after gradients would be clipped."""
    if session is None or "fused-optimizer" not in ids or not session.settings.trainer.gradient_clip_val:
        return
    stays_mixed = session.settings.trainer.precision in MIXED_PRECISIONS and not _UNIFORM.intersection(ids)
    if stays_mixed or _MIXED.intersection(ids):
        raise ConfigError(
            "fused-optimizer cannot be applied to a training in mixed precision that clips gradients: Lightning "
            "refuses the three together; leave one of them out"
        )
