"""Add callbacks to a Trainer that was built without them."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from lightning_perf import seams
from lightning_perf.hooks import DoctorHooks
from lightning_perf.interrupts import raise_if_from_signal


@functools.cache
def callback_class(hooks: type, namespace: str) -> Any:
    """Return a callback class with these hooks, derived from ``Callback`` of one of Lightning's two namespaces.

    Its instances can be pickled, as launchers that spawn processes need.
    """
    callback = importlib.import_module(namespace).Callback

    def reduce(self: Any) -> Any:
        return _blank, (hooks, namespace), vars(self)

    return type(hooks.__name__, (hooks, callback), {"__doc__": hooks.__doc__, "__reduce__": reduce})


def _blank(hooks: type, namespace: str) -> Any:
    cls = callback_class(hooks, namespace)
    return cls.__new__(cls)


def add_hooks(trainer: Any, namespace: str, hooks: type, *arguments: Any) -> Any:
    """Create a callback with these hooks, add it before all others, and return it."""
    callback = callback_class(hooks, namespace)(*arguments)
    trainer.callbacks.insert(0, callback)
    return callback


def add_doctor(trainer: Any, namespace: str, arguments: dict[str, Any]) -> Any:
    """Return the Trainer's own PerfDoctor, or add one before callbacks that save checkpoints, which stay at the end."""
    callbacks = trainer.callbacks
    existing = next((one for one in callbacks if isinstance(one, DoctorHooks)), None)
    if existing is not None:
        return existing
    module = "lightning_perf.pytorch_lightning" if namespace == "pytorch_lightning" else "lightning_perf.doctor"
    doctor = importlib.import_module(module).PerfDoctor(**arguments)
    ends = [index for index, one in enumerate(callbacks) if seams.is_checkpoint_callback(one)]
    callbacks.insert(min(ends, default=len(callbacks)), doctor)
    return doctor


class TreaterHooks:
    """Applies treatments, before callbacks that read the settings, and undoes them.

    ``fail`` is called with the error of a treatment that cannot be applied, ``applied`` with the Trainer once all are.
    """

    def __init__(
        self, applier: Any, fail: Callable[[BaseException], None], applied: Callable[[Any], None] | None = None
    ) -> None:
        super().__init__()
        self.applier, self.fail, self.applied = applier, fail, applied

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._guard(self.applier.set_up, trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._guard(self.applier.configured, trainer, pl_module)
        if self.applied is not None:
            self._guard(self.applied, trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._guard(self.applier.undo)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._guard(self.applier.undo)

    def _guard(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - reported
            raise_if_from_signal(error)
            self.fail(error)
