"""What all tests stand on."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.forkserver import Forkserver

# A shared machine may pause in the middle of an example, and results must not depend on a random seed: the
# examples are the same in each run, but for those of `make torture`.
settings.register_profile(
    "shared", deadline=None, derandomize="FUZZ" not in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")

# A shell without job control starts what goes to the background with Ctrl-C ignored, and processes inherit that: the
# tests that press it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _forget_compiled_graphs() -> Iterator[None]:
    """A process that has compiled anything is measured differently: the next test starts without such a past."""
    yield
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None:
        utils.counters.clear()


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Forkserver]:
    """Runs scripts in forks of one process that has imported torch and Lightning."""
    if not sys.platform.startswith("linux"):
        pytest.skip("forks only on Linux")
    started = Forkserver()
    yield started
    started.close()
