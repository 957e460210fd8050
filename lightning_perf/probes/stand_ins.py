"""Stands in for what torch does without an operator: ``tolist``, ``numpy``, ``cpu`` and ``print`` of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lightning_perf.seams import Undos, change_attribute

_METHODS = ("tolist", "numpy", "cpu")

Called = Callable[[str, Any, Any, Any, Any], Any]
"""Given the word for a method, the tensor, the original and its arguments; calls the original and gives its result."""


class StandIns:
    """The methods, from ``put`` to ``take_away``.

    Args:
        called: Called in their place.
    """

    def __init__(self, called: Called) -> None:
        self._called = called
        self._undos = Undos()

    def put(self) -> None:
        """From here on; another thread's calls are handed over too."""
        for name in _METHODS:
            change_attribute(torch.Tensor, name, self._wrapping(name, getattr(torch.Tensor, name)), self._undos)
        prints: Any = torch._tensor_str
        change_attribute(prints, "_str", self._wrapping("print(tensor)", prints._str), self._undos)

    def take_away(self) -> None:
        """Restore what was there; calling it twice does no harm."""
        self._undos.close()

    def _wrapping(self, word: str, original: Any) -> Callable[..., Any]:
        def wrapped(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return self._called(word, tensor, original, args, kwargs)

        return wrapped
