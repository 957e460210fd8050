"""What all tests stand on."""

import os
import signal

from hypothesis import HealthCheck, settings

# A shared machine may stand still in the middle of an example, and a submission must not hang on a lucky number: the
# examples are the same in each run, but for those of `make torture`.
settings.register_profile(
    "shared", deadline=None, derandomize="FUZZ" not in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")

# A shell without job control starts what goes to the background with Ctrl-C ignored, and processes inherit that: the
# tests that press it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
