"""The only package that touches private parts of Lightning: one function per seam, guarded for Lightning 2.4 to 2.6.

A seam that this version of Lightning lacks returns None, and the caller records why its measurement is missing. Other
seams return a function that restores what they replaced, unless somebody else has replaced it since.
"""

from .actions import *
from .changes import *
from .endings import *
from .loaders import *
from .loggers import *
from .profiler import *
from .scratch import *
from .settings import *
from .timed import *
from .undo import *
