"""What a seam gives back: the function that undoes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]
"""Puts back what a seam replaced; calling it twice does no harm."""


def change_attribute(owner: Any, name: str, value: Any) -> Undo:
    """Sets an instance's attribute until it is undone; something set since then is left alone."""
    had_own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)

    def undo() -> None:
        if name in vars(owner) and vars(owner)[name] is value:
            if had_own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)

    return undo
