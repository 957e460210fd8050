"""Training loaders, exchanged for others before Lightning iterates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from .undo import Undo, change_attribute


def _is_training_stage(trainer: Any) -> bool:
    stage = getattr(getattr(trainer, "state", None), "stage", None)
    return getattr(stage, "value", stage) == "train"


class _LoaderExchange:
    """Stands in for ``strategy.process_dataloader``, through which every loader goes after its sampler was set."""

    def __init__(self, trainer: Any, change: Callable[[Any], Any]) -> None:
        self.trainer = trainer
        self.strategy = trainer.strategy
        self.change: Callable[[Any], Any] | None = change
        # By weak reference: loaders that the user replaces while training go, and their workers with them.
        self.originals: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.inner = self.strategy.process_dataloader
        self.had_own = "process_dataloader" in vars(self.strategy)
        self.strategy.process_dataloader = self

    def __call__(self, loader: Any) -> Any:
        loader = self.inner(loader)  # first, so that several of these are undone in the opposite order
        if self.change is None or not _is_training_stage(self.trainer):
            return loader
        return self.exchanged(loader, self.change)

    def exchanged(self, loader: Any, change: Callable[[Any], Any]) -> Any:
        new = change(loader)
        if new is not loader:  # a value that is its own key would live for ever
            self.originals[new] = loader
        return new

    def undo(self) -> None:
        self.change = None
        if vars(self.strategy).get("process_dataloader") is self:
            if self.had_own:
                self.strategy.process_dataloader = self.inner
            else:
                del self.strategy.process_dataloader
        self.put_back()

    def put_back(self) -> None:
        """The user's CombinedLoader, which Lightning fills with what it processed, gets the user's loaders back."""
        combined = getattr(getattr(self.trainer, "fit_loop", None), "_combined_loader", None)
        for ours in list(self.originals):
            _stop_loader(ours)
        if combined is not None and self.originals:
            theirs = {id(new): old for new, old in self.originals.items()}
            back = [theirs.get(id(one), one) for one in combined.flattened]
            if any(one is not other for one, other in zip(back, combined.flattened, strict=True)):
                combined.flattened = back
        self.originals.clear()

    def __reduce__(self) -> Any:
        return getattr, (self.strategy, "process_dataloader")


def _stop_loader(loader: Any) -> None:
    """Ends the workers of a loader that nobody will iterate any more."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is None:
        return
    if callable(getattr(iterator, "_shutdown_workers", None)):
        iterator._shutdown_workers()
    loader._iterator = None


def tap_train_loaders(trainer: Any, change: Callable[[Any], Any]) -> Undo:
    """Exchanges each training loader as it is about to be used: with the sampler that Lightning gave it.

    Args:
        trainer: The Trainer, in the hook ``setup`` of fit.
        change: Called with each training loader, several where the user combines some; what it raises ends the fit.

    Returns:
        The undo, which also gives a ``CombinedLoader`` of the user's its own loaders back.
    """
    return _LoaderExchange(trainer, change).undo


def tap_train_loaders_ready(trainer: Any, ready: Callable[[list[Any]], None]) -> Undo | None:
    """Calls a function when all training loaders are prepared, and none of them is iterated yet.

    Args:
        trainer: The Trainer, in the hook ``setup`` of fit.
        ready: Called with them; what it raises ends the fit.

    Returns:
        The undo; None when this version of Lightning prepares them otherwise.
    """
    loop = getattr(trainer, "fit_loop", None)
    inner = getattr(loop, "_load_combined_loader_states", None)  # between preparing the loaders and iterating them
    if loop is None or inner is None or not hasattr(loop, "_combined_loader"):
        return None

    def tapped() -> None:
        inner()
        ready(list(getattr(loop._combined_loader, "flattened", ())))

    return change_attribute(loop, "_load_combined_loader_states", tapped)


def exchange_train_loaders(
    trainer: Any, change: Callable[[Any], Any], change_later: Callable[[Any], Any]
) -> Undo | None:
    """Exchanges the training loaders of a fit between two epochs, in ``on_train_epoch_start``.

    Args:
        trainer: The Trainer, at the start of an epoch after the first one, whose loaders Lightning starts after this.
        change: Called with each training loader. What it raises reaches the caller, with nothing changed.
        change_later: Called with those that Lightning asks the user for in later epochs
            (``reload_dataloaders_every_n_epochs``). What it raises ends the fit.

    Returns:
        The undo; None when this version of Lightning keeps its loaders elsewhere.
    """
    combined = getattr(getattr(trainer, "fit_loop", None), "_combined_loader", None)
    if combined is None or not hasattr(combined, "flattened"):
        return None
    exchange = _LoaderExchange(trainer, change_later)
    try:
        loaders = [exchange.exchanged(loader, change) for loader in combined.flattened]
    except BaseException:
        exchange.undo()
        raise
    combined.reset()  # ends the workers of those before
    combined.flattened = loaders
    return exchange.undo
