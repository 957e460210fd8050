"""Every treatment there is."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil

from lightning_perf import treatments
from lightning_perf.errors import ConfigError

from .treatment import Treatment


@functools.cache
def all_treatments() -> tuple[Treatment, ...]:
    """Every treatment, by id: the ``TREATMENT`` of each module in the category packages."""
    modules = (m.name for m in pkgutil.walk_packages(treatments.__path__, f"{treatments.__name__}.") if not m.ispkg)
    found = (importlib.import_module(name).TREATMENT for name in modules if name.count(".") == 3)
    return tuple(sorted(found, key=lambda treatment: treatment.id))


def find(treatment_id: str) -> Treatment:
    """The treatment with this id.

    Raises:
        ConfigError: There is none; the message names close ones.
    """
    known = {treatment.id: treatment for treatment in all_treatments()}
    if treatment_id not in known:
        close = difflib.get_close_matches(treatment_id, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(known)}"
        raise ConfigError(f"{treatment_id!r} is not a treatment: {hint}")
    return known[treatment_id]
