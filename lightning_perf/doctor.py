"""PerfDoctor for ``lightning.pytorch``."""

from lightning.pytorch import Callback

from .hooks import DoctorHooks


class PerfDoctor(DoctorHooks, Callback):
    __doc__ = DoctorHooks.__doc__
