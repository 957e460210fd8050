"""Exchange training loaders before Lightning iterates them."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from .undo import Undos, change_attribute


class _LoaderExchange:
    """Replaces ``strategy.process_dataloader``, which is called with every loader after its sampler was set."""

    def __init__(self, trainer: Any, change: Callable[[Any], Any], undos: Undos) -> None:
        self.trainer = trainer
        self.strategy = trainer.strategy
        self.change: Callable[[Any], Any] | None = change
        # Weak references, so that loaders which the user replaces during training are freed with their workers.
        self.originals: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.inner = self.strategy.process_dataloader
        undos.note(self.undo)
        change_attribute(self.strategy, "process_dataloader", self, undos)

    def __call__(self, loader: Any) -> Any:
        loader = self.inner(loader)  # first, so that several of these are undone in the opposite order
        stage = getattr(getattr(self.trainer, "state", None), "stage", None)
        if self.change is None or getattr(stage, "value", stage) != "train":
            return loader
        return self.exchanged(loader, self.change)

    def exchanged(self, loader: Any, change: Callable[[Any], Any]) -> Any:
        new = change(loader)
        if new is not loader:  # a value that is its own key would never be freed
            self.originals[new] = loader
        return new

    def undo(self) -> None:
        """Put the user's loaders back into the user's CombinedLoader, which Lightning fills with processed loaders."""
        self.change = None
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
    """End the workers of a loader that is no longer used."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is None:
        return
    if callable(getattr(iterator, "_shutdown_workers", None)):
        iterator._shutdown_workers()
    loader._iterator = None


def tap_train_loaders(trainer: Any, change: Callable[[Any], Any], undos: Undos) -> None:
    """Exchange each training loader before its use, once Lightning has set its sampler. Called in ``setup`` of fit.

    An error of ``change`` ends the fit. The undo also restores a ``CombinedLoader`` of the user.
    """
    _LoaderExchange(trainer, change, undos)


def tap_train_loaders_ready(trainer: Any, ready: Callable[[list[Any]], None], undos: Undos) -> bool:
    """Call ``ready`` with all training loaders between preparing and iterating them. Called in ``setup`` of fit.

    An error of ``ready`` ends the fit. Return False if this version of Lightning prepares loaders in another way.
    """
    loop = getattr(trainer, "fit_loop", None)
    inner = getattr(loop, "_load_combined_loader_states", None)  # between preparing the loaders and iterating them
    if loop is None or inner is None or not hasattr(loop, "_combined_loader"):
        return False

    def tapped() -> None:
        inner()
        ready(list(getattr(loop._combined_loader, "flattened", ())))

    change_attribute(loop, "_load_combined_loader_states", tapped, undos)
    return True


def fetches_one_loader_between_steps(trainer: Any) -> bool:
    """Return whether training has one loader, which Lightning reads itself and not the user's ``training_step``."""
    loop = getattr(trainer, "fit_loop", None)
    combined, fetcher = getattr(loop, "_combined_loader", None), getattr(loop, "_data_fetcher", None)
    return len(getattr(combined, "flattened", ())) == 1 and type(fetcher).__name__ == "_PrefetchDataFetcher"


def exchange_train_loaders(
    trainer: Any, change: Callable[[Any], Any], change_later: Callable[[Any], Any], undos: Undos
) -> None:
    """Exchange the training loaders at the start of an epoch after the first, in ``on_train_epoch_start``.

    Does nothing if this version of Lightning keeps its loaders elsewhere. An error of ``change`` reaches the caller,
    and no loader is exchanged. ``change_later`` is called with loaders of later epochs
    (``reload_dataloaders_every_n_epochs``); its error ends fit.
    """
    combined = getattr(getattr(trainer, "fit_loop", None), "_combined_loader", None)
    if combined is None or not hasattr(combined, "flattened"):
        return
    exchange = _LoaderExchange(trainer, change_later, undos)
    loaders = [exchange.exchanged(loader, change) for loader in combined.flattened]
    combined.reset()  # ends the workers of those before
    combined.flattened = loaders
