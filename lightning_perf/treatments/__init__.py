"""The changes that findings prescribe: each knows how it is written, when it applies, and how to apply it to a run."""

from __future__ import annotations

from .applier import Applier, environment, loader_args
from .doses import Dose, check_together, parse, parse_all, with_default
from .prescription import Written, prescription
from .rebuild import rebuilt
from .registry import all_treatments, find
from .treatment import Treatment, Undo

__all__ = [
    "Applier",
    "Dose",
    "Treatment",
    "Undo",
    "Written",
    "all_treatments",
    "check_together",
    "environment",
    "find",
    "loader_args",
    "parse",
    "parse_all",
    "prescription",
    "rebuilt",
    "with_default",
]
