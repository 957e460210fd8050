"""Immutable records of what was measured and found in a run, with units in their field names; JSON in and out.

Each record is defined in one module below and imported from this package.
"""

from .autopilot import *
from .base import *
from .collectives import *
from .comparison import *
from .finding import *
from .hang import *
from .history import *
from .host_calls import *
from .host_profile import *
from .known_results import *
from .loader_probe import *
from .machine import *
from .memory import *
from .merge import *
from .model_profile import *
from .ranks import *
from .replay import *
from .selection import *
from .session import *
from .settings import *
from .steps import *
from .telemetry import *
from .trace import *
from .trace_device import *
from .trial import *
