"""Read the interpreter's own objects atomically: no other thread runs meanwhile.

The interpreter lock is not handed over within a call of C functions, unless a callback of the garbage collector runs.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, compress, repeat, starmap
from operator import is_not, methodcaller
from typing import Any, TypeVar, cast

T = TypeVar("T")

_call = methodcaller("__call__")

_COLLECTS_IN_CALLS = sys.version_info < (3, 12)
"""Later versions collect garbage between bytecodes only (python/cpython#97922)."""


def call_atomically(read: Callable[[], T]) -> T:
    """Return what ``read``, a function in C, returns; no other thread runs and nothing is collected meanwhile."""
    if not _COLLECTS_IN_CALLS:
        return read()
    was_on: list[bool] = []
    note = partial(was_on.extend, map(_call, (gc.isenabled,)))
    steps: Iterator[Callable[[], Any]] = chain((note, gc.disable, read), compress((gc.enable,), was_on))
    try:
        return cast("T", list(map(_call, steps))[2])
    except BaseException:
        if any(was_on):
            gc.enable()
        raise


def live_objects() -> list[Any]:
    """Return the objects that the garbage collector tracks, without tuples.

    Another thread may be filling a tuple, and fails with SystemError if anything else has a reference to it then.
    """
    objects: list[Any] = []
    found: list[list[Any]] = []  # emptied below: what is found contains it
    fill = partial(objects.extend, chain.from_iterable(starmap(gc.get_objects, [()])))
    select = partial(found.extend, map(list, (compress(objects, map(is_not, map(type, objects), repeat(tuple))),)))
    call_atomically(partial(list, map(_call, (fill, select, objects.clear))))
    return found.pop()


def n_live_objects() -> int:
    """Return how many objects the garbage collector tracks."""
    counts: list[int] = call_atomically(partial(list, map(len, starmap(gc.get_objects, [()]))))
    return counts[0]
