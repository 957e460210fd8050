"""Callbacks of measured trainings, for whichever namespace the Trainer is of."""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def callback_class(hooks: type, namespace: str) -> Any:
    """Hooks as a callback.

    Args:
        hooks: A class with hooks of Lightning's ``Callback``.
        namespace: ``lightning.pytorch`` or ``pytorch_lightning``, whose ``Callback`` it is to derive from.

    Returns:
        The class; its instances can be pickled, as launchers that spawn processes need.
    """
    callback = importlib.import_module(namespace).Callback

    def reduce(self: Any) -> Any:
        return _blank, (hooks, namespace), vars(self)

    return type(hooks.__name__, (hooks, callback), {"__doc__": hooks.__doc__, "__reduce__": reduce})


def _blank(hooks: type, namespace: str) -> Any:
    cls = callback_class(hooks, namespace)
    return cls.__new__(cls)
