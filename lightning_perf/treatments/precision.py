"""What the treatments of precision share."""

from __future__ import annotations

from typing import Any

from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session

FULL = ("32-true", "32")


def precision_set(session: Session) -> str | None:
    """Why the precision is not to be lowered; None where it is float32."""
    precision = session.settings.trainer.precision
    return None if precision is None or precision in FULL else f"precision is {precision}, not 32-true"


def change_precision(arguments: dict[str, Any], precision: str) -> None:
    """Sets ``precision`` in the arguments of a Trainer that has no precision plugin.

    Raises:
        TreatmentError: A plugin decides the precision, with which Lightning takes no flag.
    """
    plugins = arguments.get("plugins")
    plugins = plugins if isinstance(plugins, (list, tuple)) else [plugins]
    theirs = next(
        (p for p in plugins if p is not None and any(b.__name__ == "Precision" for b in type(p).__mro__)), None
    )
    if theirs is not None:
        raise TreatmentError(
            f"precision={precision!r} cannot be set beside the plugin {type(theirs).__name__}; "
            "exchange the plugin instead"
        )
    arguments["precision"] = precision
