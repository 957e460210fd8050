"""Stands in for what torch does without an operator: ``tolist``, ``numpy``, ``cpu`` and ``print`` of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
        self._undos: list[Callable[[], None]] = []

    def put(self) -> None:
        """From here on; another thread's calls are handed over too."""
        for name in _METHODS:
            own = vars(torch.Tensor).get(name)  # None where it is inherited from torch's base in C
            wrapped = self._wrapping(name, getattr(torch.Tensor, name))
            setattr(torch.Tensor, name, wrapped)
            self._undos.append(_putter_back(torch.Tensor, name, wrapped, own))
        prints: Any = torch._tensor_str
        original = prints._str
        prints._str = self._wrapping("print(tensor)", original)
        self._undos.append(_putter_back(prints, "_str", prints._str, original))

    def take_away(self) -> None:
        """Puts back what was there; twice does no harm."""
        while self._undos:
            self._undos.pop()()

    def _wrapping(self, word: str, original: Any) -> Callable[..., Any]:
        def wrapped(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return self._called(word, tensor, original, args, kwargs)

        return wrapped


def _putter_back(owner: Any, name: str, wrapped: Any, original: Any) -> Callable[[], None]:
    def put_back() -> None:
        if vars(owner).get(name) is not wrapped:  # somebody has replaced it since: theirs calls ours
            return
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return put_back
