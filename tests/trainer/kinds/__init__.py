"""Kinds of training, by subject; importing this package declares all of them."""

from __future__ import annotations

import importlib
import pkgutil

from .registry import KINDS, Kind

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["KINDS", "Kind"]
