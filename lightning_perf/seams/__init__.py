"""The only package that touches private parts of Lightning: one function per seam, guarded for Lightning 2.4 to 2.6.

A seam that changes something takes the ``Undos`` where it notes, before the change, how to restore what it replaces. It
returns False if this version of Lightning lacks what it needs, and the caller records why its measurement is missing.
"""

from .actions import *
from .bare_loop import *
from .changes import *
from .endings import *
from .fabric import *
from .loaders import *
from .loggers import *
from .profiler import *
from .scratch import *
from .settings import *
from .timed import *
from .undo import *
