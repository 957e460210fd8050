"""Hooks that a training adds to its modules."""

from .base import Record


class AddedHooks(Record, frozen=True, kw_only=True):
    """Hooks that a training adds to its modules while it runs.

    Attributes:
        n_hooks: Hooks of the module to which most were added, when they were last counted.
        per_step: Hooks added to it per step.
        per_epoch: Hooks added to it per epoch; None if they are added in most steps.
        module: Its path, e.g. ``"encoder.layers.0"``; empty for the LightningModule itself.
        function: Name of the hook added last; empty if unknown.
        site: Its first line, e.g. ``"model.py:31"``; empty if unknown.
    """

    n_hooks: int
    per_step: float
    per_epoch: float | None = None
    module: str = ""
    function: str = ""
    site: str = ""
