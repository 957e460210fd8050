"""PerfDoctor for the ``pytorch_lightning`` namespace, whose ``Callback`` is another class."""

from pytorch_lightning import Callback

from .hooks import DoctorHooks


class PerfDoctor(DoctorHooks, Callback):
    __doc__ = DoctorHooks.__doc__
