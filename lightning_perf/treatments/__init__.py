"""Treatments: the changes that findings recommend, how users write them, and how they are applied to a run."""

from .applier import Applier, environment, loader_args
from .prescription import Written, prescription
from .rebuild import rebuilt
from .specs import TreatmentSpec, all_treatments, check_together, find, parse, parse_all, with_default
from .treatment import Treatment

__all__ = [
    "Applier",
    "Treatment",
    "TreatmentSpec",
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
