"""The list of all treatments."""

import difflib
import functools

from lightning_perf.errors import ConfigError

from . import compile, compute, data, distributed, host, loop, memory, precision
from .treatment import Treatment

_MODULES = (data, compute, precision, compile, memory, host, loop, distributed)


@functools.cache
def all_treatments() -> tuple[Treatment, ...]:
    """Return every treatment, sorted by id."""
    return tuple(sorted((each for module in _MODULES for each in module.TREATMENTS), key=lambda each: each.id))


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
