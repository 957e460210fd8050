"""Wrap methods in spans, each on its instance, where Lightning announces no action."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import Any

from .actions import epoch_loop
from .undo import Undos, change_attribute, remove_hook


class _Timed:
    """A method inside a span, in this thread only. It copies and pickles as the plain method, so that its owner can."""

    def __init__(self, owner: Any, name: str, span_of: Callable[[], AbstractContextManager[Any]]) -> None:
        self._owner, self._name, self._thread = owner, name, get_ident()
        self.__wrapped__ = getattr(owner, name)
        self.__name__ = name
        self.__doc__ = getattr(self.__wrapped__, "__doc__", None)
        self.span_of: Callable[[], AbstractContextManager[Any]] | None = span_of  # None once undone

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.span_of is None or get_ident() != self._thread:
            return self.__wrapped__(*args, **kwargs)
        with self.span_of():
            return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self._owner, self._name)


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that a compiled step may call: Dynamo does not trace it."""
    import torch  # which naming treatments does not need

    untraced: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return untraced


@functools.cache
def untraced(cls: type) -> Any:
    """Return a class for replacements of methods that Lightning excludes from compilation, too."""
    return type(cls.__name__, (cls,), {"__call__": _untraced(vars(cls)["__call__"])})


class _MoreBarMetrics(_Timed):
    """``progress_bar.get_metrics`` with PerfDoctor's figures in front, where a bar of 80 columns does not cut them."""

    def __init__(self, owner: Any, more: Callable[[], dict[str, str]]) -> None:
        super().__init__(owner, "get_metrics", nullcontext)
        self._more = more

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        metrics = self.__wrapped__(*args, **kwargs)
        if self.span_of is None or get_ident() != self._thread or not isinstance(metrics, dict):
            return metrics
        return {**{name: text for name, text in self._more().items() if name not in metrics}, **metrics}


class _StackRecorder(_Timed):
    """``format_stack`` of anomaly detection; the stacks that it returns do not show that it is timed."""

    def __init__(self, owner: Any, name: str, span_of: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(owner, name, span_of)
        self.__module__ = owner.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stack = super().__call__(*args, **kwargs)
        for _ in range(2):  # this frame, and that of the method above
            if isinstance(stack, list) and stack and stack[-1].startswith(f'  File "{__file__}"'):
                stack.pop()
        return stack

    def __reduce__(self) -> Any:
        return self.__name__  # as the function of the module that it is


def _put(timed: _Timed, undos: Undos) -> None:
    """Set a timed method on its instance. The undo also stops its timing, in case other code kept a reference."""

    def stop_timing() -> None:
        timed.span_of = None

    undos.note(stop_timing)
    change_attribute(timed._owner, timed._name, timed, undos)


def tap_logging(
    trainer: Any,
    collecting: Callable[[str], AbstractContextManager[Any]],
    logger_span: Callable[[str, str], AbstractContextManager[Any]],
    on_fail: Callable[[Exception], None],
    undos: Undos,
) -> bool:
    """Time metric collection (``self.log``, ``metrics``, ``.item()`` for the progress bar) and every logger.

    Of ``self.log`` only the update of the collected values is timed, not its checks of arguments. Collection is not
    timed before the first value, so that a training that logs nothing has no overhead.

    ``collecting`` returns the span of a method of Lightning's logger connector, or of ``log`` for its results,
    ``logger_span`` that of a logger's class name and method. ``on_fail`` is called with an error during the run; values
    are logged nevertheless. Return False if this version has no logger connector that accepts attributes.
    """
    connector = getattr(trainer, "_logger_connector", None)
    if not hasattr(connector, "__dict__"):
        return False
    methods = ["on_batch_end", "log_eval_end_metrics", "on_epoch_end"]
    methods += [f"update_{stage}_{level}_metrics" for stage in ("train", "eval") for level in ("step", "epoch")]
    untimed = [method for method in methods if callable(getattr(connector, method, None))]
    results = list(result_collections(trainer))

    def time_collection() -> None:
        try:
            while untimed:
                method = untimed.pop()
                _tap_method(connector, method, collecting(method), undos)
        except Exception as error:  # noqa: BLE001 - reported; it would end the user's ``self.log``
            untimed.clear()
            on_fail(error)

    if results:
        logging = collecting("log")

        def collecting_begins() -> AbstractContextManager[Any]:
            time_collection()
            return logging

        for one in results:
            _put(untraced(_Timed)(one, "log", collecting_begins), undos)
    else:
        time_collection()
    for logger in trainer.loggers:
        if hasattr(logger, "__dict__"):  # methods of other objects cannot be replaced
            for method in ("log_metrics", "save"):
                _tap_method(logger, method, logger_span(type(logger).__name__, method), undos)
    return True


def result_collections(trainer: Any) -> Iterator[Any]:
    """Yield the result collections of the loops, which hold the values of ``self.log``."""
    training = epoch_loop(trainer)
    evaluations = (getattr(trainer, name, None) for name in ("validate_loop", "test_loop"))
    for loop in (training, getattr(training, "val_loop", None), *evaluations):
        results = getattr(loop, "_results", None)
        if callable(getattr(results, "log", None)) and hasattr(results, "__dict__"):
            yield results


def tap_progress_bar(trainer: Any, more: Callable[[], dict[str, str]], undos: Undos) -> None:
    """Add figures to the progress bar, if any. ``more`` returns them by name and must not raise."""
    bar = getattr(trainer, "progress_bar_callback", None)
    if callable(getattr(bar, "get_metrics", None)) and hasattr(bar, "__dict__"):
        _put(_MoreBarMetrics(bar, more), undos)


def tap_validation(trainer: Any, around: AbstractContextManager[Any], undos: Undos) -> bool:
    """Enclose every run of the validation loop inside fit, also the sanity check; return False if it is not found."""
    return _tap_method(getattr(epoch_loop(trainer), "val_loop", None), "run", around, undos)


def tap_epoch_iteration(trainer: Any, around: AbstractContextManager[Any], undos: Undos) -> bool:
    """Enclose the creation of each later epoch's iterator, which restarts workers that are not persistent."""
    return _tap_method(epoch_loop(trainer), "on_run_start", around, undos)


def tap_validation_iteration(trainer: Any, around: AbstractContextManager[Any], undos: Undos) -> bool:
    """Enclose the creation of the iterators of each validation inside fit."""
    return _tap_method(getattr(epoch_loop(trainer), "val_loop", None), "reset", around, undos)


def tap_backward(trainer: Any, span: AbstractContextManager[Any], undos: Undos) -> bool:
    """Enclose ``strategy.backward``, which manual optimization calls without announcing an action."""
    strategy = getattr(trainer, "strategy", None)
    if not callable(getattr(strategy, "backward", None)):
        return False
    _put(untraced(_Timed)(strategy, "backward", lambda: span), undos)
    return True


def tap_call(owner: Any, name: str, span_of: Callable[[], AbstractContextManager[Any]], undos: Undos) -> bool:
    """Enclose a function of a module, or a method, in the span that ``span_of`` returns for each call.

    Return False if there is no such function.
    """
    if not callable(getattr(owner, name, None)):
        return False
    _put(_Timed(owner, name, span_of), undos)
    return True


def tap_stack_recording(span_of: Callable[[], AbstractContextManager[Any]], undos: Undos) -> None:
    """Enclose the recording of a stack for each operator, which torch does while anomaly detection is on."""
    import torch.fx.traceback  # as autograd imports it with the first stack

    _put(_StackRecorder(torch.fx.traceback, "format_stack", span_of), undos)


def tap_reduce(trainer: Any, span: AbstractContextManager[Any], undos: Undos) -> bool:
    """Enclose ``strategy.reduce``, which reduces metrics logged with ``sync_dist=True`` over the ranks."""
    return _tap_method(getattr(trainer, "strategy", None), "reduce", span, undos)


def tap_sigterm_broadcast(trainer: Any, span: AbstractContextManager[Any], undos: Undos) -> bool:
    """Enclose the broadcast at the start of every training step on several ranks; False before Lightning 2.6."""
    return _tap_method(epoch_loop(trainer), "_broadcast_sigterm_tensor", span, undos)


def _tap_method(owner: Any, name: str, span: AbstractContextManager[Any], undos: Undos) -> bool:
    return tap_call(owner, name, lambda: span, undos)


def tap_optimizers(
    optimizers: Iterable[Any], span: AbstractContextManager[Any], after_step: Callable[[Any], None], undos: Undos
) -> None:
    """Enclose every ``optimizer.step`` by torch's step hooks, also of optimizers used without Lightning's wrapper."""

    @_untraced
    def before(*_: Any) -> None:
        span.__enter__()

    @_untraced
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
