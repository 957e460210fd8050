"""Applies treatments to a Trainer from within, at the hooks where each can be applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TreaterHooks:
    """Applies treatments when the loaders, the model and the optimizers stand, and takes them out again.

    Args:
        applier: The treatments.
        fail: Called with the error of a treatment that cannot be applied.
    """

    def __init__(self, applier: Any, fail: Callable[[BaseException], None]) -> None:
        super().__init__()
        self.applier = applier
        self.fail = fail

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before loaders and optimizers are made."""
        self._guard(self.applier.set_up, trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Optimizers stand, restored where a checkpoint is resumed."""
        self._guard(self.applier.configured, trainer, pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The last hook of a run that went well."""
        self._guard(self.applier.undo)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The last hook of a run that did not."""
        self._guard(self.applier.undo)

    def _guard(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - reported
            self.fail(error)
