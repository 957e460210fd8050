"""A forked child: what it said and what ended it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from lightning_perf.probes.loader.child import Child, Ended, Say

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")


def ended(work: Callable[[Say], None]) -> Ended:
    child = Child(30.0)
    child.start(work)
    until = time.monotonic() + 30
    while (how := child.poll()) is None and time.monotonic() < until:
        time.sleep(0.005)
    child.close()
    assert how is not None
    return how


def knows_then(act: Callable[[], object]) -> Callable[[Say], None]:
    def work(say: Say) -> None:
        say(b"little")
        say(b"more")
        act()

    return work


def exits() -> None:
    raise SystemExit(3)


def divides() -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("act", "trouble"),
    [
        (lambda: None, ""),
        (divides, "its process raised ZeroDivisionError: division by zero"),
        (exits, "its process raised SystemExit: 3"),
        (lambda: os._exit(4), "its process ended with exit code 4"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its process was killed by SIGKILL"),
    ],
    ids=["nothing", "raises", "exits", "ends", "killed"],
)
def test_child_tells_what_it_knew_and_what_ended_it_when(act: Callable[[], object], trouble: str) -> None:
    assert ended(knows_then(act)) == Ended(b"more", trouble)


def test_child_ends_with_an_error_code_when_even_telling_fails() -> None:
    def work(say: Say) -> None:
        os.close(say.descriptor)
        divides()

    assert ended(work) == Ended(b"", "its process ended with exit code 1")
