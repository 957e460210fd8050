"""The callbacks of measured trainings for ``pytorch_lightning``."""

from __future__ import annotations

from pytorch_lightning import Callback

from .data_hooks import DataProbeHooks, OneBatchHooks
from .meter import MeterHooks
from .treater import TreaterHooks


class Meter(MeterHooks, Callback):
    __doc__ = MeterHooks.__doc__


class Treater(TreaterHooks, Callback):
    __doc__ = TreaterHooks.__doc__


class DataProbe(DataProbeHooks, Callback):
    __doc__ = DataProbeHooks.__doc__


class OneBatchOnly(OneBatchHooks, Callback):
    __doc__ = OneBatchHooks.__doc__
