"""lightning-perf: why a Lightning training is slow, what to change, and the expected speedup.

Names are loaded on first use: ``import lightning_perf`` loads neither torch nor lightning.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import traces
    from .doctor import PerfDoctor
    from .errors import ConfigError, PerfDoctorError, SessionError, TraceError, TrialError
    from .options import DoctorOptions
    from .quick import memory_breakdown
    from .quick_model import measure_ceilings, quick_profile
    from .records import Session, load
    from .reports.text import to_html, to_text
    from .trials.python import trial

__version__ = "0.1.0"

_HOMES = {
    "PerfDoctor": ".doctor",
    "Session": ".records",
    "load": ".records",
    "ConfigError": ".errors",
    "PerfDoctorError": ".errors",
    "SessionError": ".errors",
    "TraceError": ".errors",
    "TrialError": ".errors",
    "measure_ceilings": ".quick_model",
    "memory_breakdown": ".quick",
    "quick_profile": ".quick_model",
    "DoctorOptions": ".options",
    "to_html": ".reports.text",
    "to_text": ".reports.text",
    "traces": ".traces",
    "trial": ".trials.python",
}

__all__ = [
    "ConfigError",
    "DoctorOptions",
    "PerfDoctor",
    "PerfDoctorError",
    "Session",
    "SessionError",
    "TraceError",
    "TrialError",
    "load",
    "measure_ceilings",
    "memory_breakdown",
    "quick_profile",
    "to_html",
    "to_text",
    "traces",
    "trial",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name], __name__)
    value = module if _HOMES[name] == f".{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
