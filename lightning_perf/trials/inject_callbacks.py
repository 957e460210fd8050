"""Add callbacks to a Trainer that was built without them."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.hooks import DoctorHooks


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


def add_callback(trainer: Any, callback: Any, is_first: bool = False) -> None:
    """Add a callback first, or last before those that save checkpoints, which Lightning keeps at the end."""
    callbacks = trainer.callbacks
    ends = [index for index, one in enumerate(callbacks) if seams.is_checkpoint_callback(one)]
    callbacks.insert(0 if is_first else min(ends, default=len(callbacks)), callback)


def add_doctor(trainer: Any, namespace: str, arguments: dict[str, Any]) -> Any:
    """Return the Trainer's own PerfDoctor, or add one."""
    existing = next((one for one in trainer.callbacks if isinstance(one, DoctorHooks)), None)
    if existing is not None:
        return existing
    module = "lightning_perf.pytorch_lightning" if namespace == "pytorch_lightning" else "lightning_perf.doctor"
    doctor = importlib.import_module(module).PerfDoctor(**arguments)
    add_callback(trainer, doctor)
    return doctor


def make_applier(specs: Sequence[str], refused: Callable[[TreatmentError], None] | None = None) -> Any | None:
    """Return the ``Applier`` of treatments as users write them; None without any. For ``refused`` see ``Applier``."""
    if not specs:
        return None
    from lightning_perf.treatments.applier import Applier
    from lightning_perf.treatments.specs import parse_all

    return Applier(parse_all(specs), refused)


def add_treater(
    trainer: Any,
    namespace: str,
    applier: Any,
    fail: Callable[[BaseException], None],
    applied: Callable[[Any], None] | None = None,
) -> None:
    """Add the callback that applies treatments, before callbacks that read the settings."""
    add_callback(trainer, callback_class(TreaterHooks, namespace)(applier, fail, applied), is_first=True)


class TreaterHooks:
    """Applies treatments and undoes them.

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
            self.fail(error)
