"""Restore everything that is patched, also after an interrupt.

An exception can come at any line: Python runs signal handlers between any two instructions of the main thread. So

- an undo is noted *before* its change is made (``Undos.note``), and does nothing if the change was not made;
- an undo can be called again: ``Undos.close`` drops it only after it returned;
- a function that restores a run is called again if an interrupt ended it early (``complete``).
"""

import contextlib
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any
from weakref import WeakSet

from lightning_perf.interrupts import is_from_signal, raise_if_from_signal

Undo = Callable[[], object]
"""Function that restores what a seam replaced. Can be called twice."""

_ATTEMPTS = 3


class Undos:
    """The undo functions of one owner."""

    def __init__(self) -> None:
        self._undos: list[Undo] = []

    def note(self, undo: Undo) -> None:
        """Note an undo, before its change is made."""
        self._undos.append(undo)

    def close(self) -> None:
        """Undo everything in reverse order, even if single undos raise. Can be called twice.

        Raises:
            Exception: The first error of an undo, once the others have run.
            BaseException: An interrupt (``SystemExit``, ``KeyboardInterrupt``, whatever a signal handler raised), at
                once: call it again for the rest.
        """
        error: Exception | None = None
        while self._undos:
            undo = self._undos[-1]
            try:
                undo()
            except Exception as raised:  # noqa: BLE001 - raised again after the others
                raise_if_from_signal(raised)
                error = error or raised
            with contextlib.suppress(ValueError):  # two threads may close it
                self._undos.remove(undo)
        if error is not None:
            raise error


def complete(function: Callable[[], None]) -> None:
    """Call a function that can be called twice; call it again if an interrupt ended it early.

    Raises:
        BaseException: What the function raised; an interrupt after the call that returned.
    """
    interrupt: BaseException | None = None
    for _ in range(_ATTEMPTS):
        try:
            function()
        except BaseException as raised:
            if isinstance(raised, Exception) and not is_from_signal(raised):
                raise
            interrupt = raised
        else:
            break
    if interrupt is not None:
        raise interrupt


_changes: "WeakSet[_Change]" = WeakSet()


class _Change:
    """An attribute of an owner that is set to another value until that is undone."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self.owner, self.name, self.value = owner, name, value
        self.had_own = name in vars(owner)
        self.before = vars(owner).get(name)

    def make(self) -> None:
        _changes.add(self)
        setattr(self.owner, self.name, self.value)

    def undo(self) -> None:
        if vars(self.owner).get(self.name, self) is self.value:
            if self.had_own:
                setattr(self.owner, self.name, self.before)
            else:
                delattr(self.owner, self.name)
            return
        for later in list(_changes):  # so that a later change restores the value before this one
            if later.owner is self.owner and later.name == self.name and later.before is self.value:
                later.had_own, later.before = self.had_own, self.before


def change_attribute(owner: Any, name: str, value: Any, undos: Undos) -> None:
    """Set an attribute of an instance, class or module until it is undone.

    The undo keeps a value that other code has set since then.
    """
    change = _Change(owner, name, value)
    undos.note(change.undo)
    change.make()


def remove_hook(registries: Iterable[MutableMapping[int, Any]], hook: Any) -> None:
    """Remove a hook from torch's registries by identity: an interrupt may come before the handle is stored.

    ``registries`` map ids to hooks, and the same ids to torch's options of them.
    """
    searched = list(registries)
    ids = [key for registry in searched for key, value in list(registry.items()) if value is hook]
    for registry in searched:
        for key in ids:
            registry.pop(key, None)
