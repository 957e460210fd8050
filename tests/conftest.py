"""Settings and fixtures for all tests."""

import gc
import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from packaging.version import Version

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


# Trainings wait until the disk has what they write, which takes long while other programs use it. What is compiled is
# loaded from this place, too.
_IN_MEMORY = "/dev/shm"
_NEEDED_BYTES = 2**32
if "TMPDIR" not in os.environ and os.access(_IN_MEMORY, os.W_OK):
    _mount = os.statvfs(_IN_MEMORY)
    if _mount.f_bavail * _mount.f_frsize > _NEEDED_BYTES and not _mount.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = _IN_MEMORY

# Trainings of the tests, also of other processes, must not be recorded among the user's.
_HISTORIES = tempfile.TemporaryDirectory(prefix="lightning-perf-histories-")
_NUMBERS = itertools.count()
os.environ["LIGHTNING_PERF_HISTORY"] = str(Path(_HISTORIES.name, "first.db"))

# Reports show absolute paths to a program that has left the folder of its shell, as tests do that change theirs.
os.environ.pop("PWD", None)


# Python 3.14 starts workers by a server, to which datasets of tests that hold clocks or open files cannot be sent.
if sys.version_info >= (3, 14):
    multiprocessing.set_start_method("fork", force=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without garbage collections, which traverse millions of new objects and free hardly any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs_torch"):
        needed = mark.args[0]
        if Version(metadata.version("torch")) < Version(needed):
            pytest.skip(f"needs torch {needed} or newer")


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Undo what a test sets: Lightning leaves the port of a process group, which scripts of later tests would take."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def history_file(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The history of one test: runs of other tests are no earlier runs of its trainings."""
    file = Path(_HISTORIES.name, f"{next(_NUMBERS)}.db")
    monkeypatch.setenv("LIGHTNING_PERF_HISTORY", str(file))
    return file


@pytest.fixture(autouse=True)
def _no_false_alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test whose trainings in this process are reported as hanging, unless it is marked ``hangs``."""
    reports = sys.modules.get("lightning_perf.run_reports")
    if reports is None or request.node.get_closest_marker("hangs"):
        yield
        return
    hangs: list[Any] = []
    report = reports.RunReports.hang

    def reported(run: Any, hang: Any, stacks: str) -> Any:
        hangs.append(hang)
        return report(run, hang, stacks)

    monkeypatch.setattr(reports.RunReports, "hang", reported)
    yield
    assert hangs == [], "reported as hanging; mark the test `hangs` if it does hang"


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


@pytest.fixture(scope="module")
def frozen_objects() -> Iterator[None]:
    """Keep the objects of earlier modules out of collections and counts of objects, which take long otherwise."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
