"""Methods that no action announces, each enclosed in a span on its instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import Any

from .undo import Undo, Undos, change_attribute, remove_hook

_EVALUATIONS = ("validate", "test")


class _Timed:
    """A method inside a span. Copies and pickles as the plain method, so that its owner stays picklable."""

    def __init__(self, owner: Any, name: str, span: AbstractContextManager[Any]) -> None:
        self._owner, self._name, self._thread = owner, name, get_ident()
        self.__wrapped__ = getattr(owner, name)
        self.__name__ = name
        self.__doc__ = getattr(self.__wrapped__, "__doc__", None)
        self.span: AbstractContextManager[Any] | None = span

    def is_measuring(self) -> bool:
        """Whether this call is the loop's: time is kept for one thread, loggers may be called from others."""
        return self.span is not None and get_ident() == self._thread

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.span is None or get_ident() != self._thread:
            return self.__wrapped__(*args, **kwargs)
        with self.span:
            return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self._owner, self._name)


class _Once:
    """Does what it was given the first time, and never again; an error is handed over, for it is in the user's call."""

    def __init__(self, action: Callable[[], None], on_fail: Callable[[Exception], None]) -> None:
        self._action: Callable[[], None] | None = action
        self._on_fail = on_fail

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is None:
            return
        try:
            action()
        except Exception as error:  # noqa: BLE001 - reported
            self._on_fail(error)


class _TimedFromFirst(_Timed):
    """A method inside a span, whose first call has something else done before."""

    def __init__(self, owner: Any, name: str, span: AbstractContextManager[Any], first: _Once) -> None:
        super().__init__(owner, name, span)
        self._first = first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_measuring():
            self._first()
        return super().__call__(*args, **kwargs)


class _MoreBarMetrics(_Timed):
    """``progress_bar.get_metrics`` with the doctor's own figures behind the bar's."""

    def __init__(self, owner: Any, more: Callable[[], dict[str, str]]) -> None:
        super().__init__(owner, "get_metrics", nullcontext())
        self._more = more

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        metrics = self.__wrapped__(*args, **kwargs)
        if not self.is_measuring() or not isinstance(metrics, dict):
            return metrics
        return {**metrics, **{name: text for name, text in self._more().items() if name not in metrics}}


def _put(timed: _Timed, undos: Undos | None = None) -> Undo:
    """Put a timed method on its instance; the undo, noted before, also makes it inert where somebody kept it."""

    def stop_timing() -> None:
        timed.span = None

    put = Undos()
    put.note(stop_timing)
    if undos is not None:
        undos.note(put.close)
    change_attribute(timed._owner, timed._name, timed, put)
    return put.close


def tap_logging(
    trainer: Any,
    collecting: Callable[[str], AbstractContextManager[Any]],
    logger_span: Callable[[str, str], AbstractContextManager[Any]],
    on_fail: Callable[[Exception], None],
    undos: Undos,
) -> Undo | None:
    """Times metric collection (``self.log``, ``metrics``, ``.item()`` for the progress bar) and every logger.

    Of ``self.log`` it is what updates the values collected: its checks of arguments stay with the hook that logs.
    Before the first value there is nothing to collect, and the collection is not timed: who logs nothing pays nothing.

    Args:
        trainer: The Trainer.
        collecting: Method of Lightning's logger connector, or ``log`` for its results → its span.
        logger_span: (logger's class name, method) → its span.
        on_fail: Called with an error once the run is under way; what is logged is logged all the same.
        undos: Where undo functions are noted.

    Returns:
        The undo; None when this version has no logger connector that takes attributes.
    """
    connector = getattr(trainer, "_logger_connector", None)
    if not hasattr(connector, "__dict__"):
        return None
    collecting_methods = (
        "on_batch_end",
        "update_train_step_metrics",
        "update_train_epoch_metrics",
        "update_eval_step_metrics",
        "update_eval_epoch_metrics",
        "log_eval_end_metrics",
        "on_epoch_end",
    )
    # with slots only, none of it can be replaced
    loggers = [one for one in trainer.loggers if hasattr(one, "__dict__")]
    results = list(result_collections(trainer))
    put = Undos()
    undos.note(put.close)

    def collect() -> None:
        for method in collecting_methods:
            if callable(getattr(connector, method, None)):
                _put(_Timed(connector, method, collecting(method)), put)

    if not results:
        collect()
    else:
        first, logging = _Once(collect, on_fail), collecting("log")
        for one in results:
            _put(_TimedFromFirst(one, "log", logging, first), put)
    for logger in loggers:
        kind = type(logger).__name__
        for method in ("log_metrics", "save"):
            _put(_Timed(logger, method, logger_span(kind, method)), put)
    return put.close


def result_collections(trainer: Any) -> Iterator[Any]:
    """Where the loops collect what ``self.log`` is given."""
    training = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    loops = (
        training,
        getattr(training, "val_loop", None),
        *(getattr(trainer, f"{n}_loop", None) for n in _EVALUATIONS),
    )
    for loop in loops:
        results = getattr(loop, "_results", None)
        if callable(getattr(results, "log", None)) and hasattr(results, "__dict__"):
            yield results


def tap_progress_bar(trainer: Any, more: Callable[[], dict[str, str]], undos: Undos | None = None) -> Undo | None:
    """Lets the progress bar show some figures more, whenever it collects its own.

    Args:
        trainer: The Trainer.
        more: The figures by name; must not raise.

    Returns:
        The undo; None where there is no bar.
    """
    bar = getattr(trainer, "progress_bar_callback", None)
    if not callable(getattr(bar, "get_metrics", None)) or not hasattr(bar, "__dict__"):
        return None
    return _put(_MoreBarMetrics(bar, more), undos)


def tap_validation(trainer: Any, around: AbstractContextManager[Any], undos: Undos | None = None) -> Undo | None:
    """Encloses every run of the validation loop inside fit, the sanity check's too; None when it is not to be found."""
    loop = getattr(getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None), "val_loop", None)
    if loop is None or not callable(getattr(loop, "run", None)):
        return None
    return _put(_Timed(loop, "run", around), undos)


def tap_backward(trainer: Any, span: AbstractContextManager[Any], undos: Undos | None = None) -> Undo | None:
    """Encloses ``strategy.backward``, which manual optimization calls without announcing an action."""
    strategy = getattr(trainer, "strategy", None)
    if strategy is None or not callable(getattr(strategy, "backward", None)):
        return None
    return _put(_Timed(strategy, "backward", span), undos)


def tap_reduce(trainer: Any, span: AbstractContextManager[Any], undos: Undos | None = None) -> Undo | None:
    """Encloses ``strategy.reduce``, by which metrics logged with ``sync_dist=True`` are reduced over the ranks."""
    strategy = getattr(trainer, "strategy", None)
    if strategy is None or not callable(getattr(strategy, "reduce", None)):
        return None
    return _put(_Timed(strategy, "reduce", span), undos)


def tap_sigterm_broadcast(trainer: Any, span: AbstractContextManager[Any], undos: Undos | None = None) -> Undo | None:
    """Encloses the broadcast with which every training step of a run on several ranks begins; None before 2.6."""
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    if loop is None or not callable(getattr(loop, "_broadcast_sigterm_tensor", None)):
        return None
    return _put(_Timed(loop, "_broadcast_sigterm_tensor", span), undos)


def tap_optimizers(
    optimizers: Iterable[Any], span: AbstractContextManager[Any], after_step: Callable[[Any], None], undos: Undos
) -> Undo:
    """Encloses every ``optimizer.step`` by torch's step hooks: also of optimizers used without Lightning's wrapper."""

    def before(*_: Any) -> None:
        span.__enter__()

    def after(used: Any, *_: Any) -> None:
        span.__exit__(None, None, None)
        after_step(used)

    tapped = list(optimizers)

    def undo() -> None:
        for optimizer in tapped:
            remove_hook([optimizer._optimizer_step_pre_hooks], before)
            remove_hook([optimizer._optimizer_step_post_hooks], after)

    undos.note(undo)
    for optimizer in tapped:
        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
    return undo
