"""PerfDoctor for ``lightning.pytorch``."""

from __future__ import annotations

from lightning.pytorch import Callback

from .hooks import DoctorHooks


class PerfDoctor(DoctorHooks, Callback):
    __doc__ = DoctorHooks.__doc__
    state_key = "PerfDoctor"  # what the base's property says, which each step asks for twice
