"""The only file that touches private parts of Lightning: one function a seam, each guarded for Lightning 2.4 … 2.6.

A seam that this version of Lightning lacks gives None, and the caller records why its measurement is missing. Whatever
a seam puts in place is taken out by the function it returns, and only if it still stands there.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from threading import get_ident
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

Undo = Callable[[], None]
"""Puts back what a seam replaced; calling it twice does no harm."""

SpanFor = Callable[[str], AbstractContextManager[None]]
"""The span for an action that Lightning's loops announce to the profiler."""

_LIGHTNING_PACKAGES = ("lightning.pytorch.", "pytorch_lightning.")


# -- the actions that Lightning's loops announce to `trainer.profiler` ---------------------


class Action(NamedTuple):
    """What an action's name says.

    Attributes:
        kind: ``callback``, ``module``, ``datamodule``, ``strategy``, ``fetch`` or ``other``.
        owner: Class name of who acts; for a fetch the stage: ``train``, ``val``, ``test`` or ``predict``.
        hook: The hook or method.
        target: The callback meant, or None.
    """

    kind: str
    owner: str
    hook: str
    target: Any = None


_ACTION = re.compile(
    r"\[(?P<kind>Callback|LightningModule|LightningDataModule|Strategy)\](?P<who>.*)\.(?P<hook>\w+)", re.S
)
_FETCH = re.compile(r"\[\w+\]\.(?P<stage>train|val|validation|test|predict)(_dataloader)?_next")
_KINDS = {
    "Callback": "callback",
    "LightningModule": "module",
    "LightningDataModule": "datamodule",
    "Strategy": "strategy",
}


def describe_action(trainer: Any, action_name: str) -> Action:
    """Takes an action's name apart; a name of unknown form is kind ``other``."""
    if match := _FETCH.fullmatch(action_name):
        stage = match["stage"]
        return Action("fetch", {"validation": "val"}.get(stage, stage), "next")
    if match := _ACTION.fullmatch(action_name):
        who, hook = match["who"], match["hook"]
        target = None
        if match["kind"] == "Callback":
            target = next((c for c in trainer.callbacks if c.state_key == who), None)
        owner = type(target).__name__ if target is not None else re.split(r"\W", who)[0] or who
        return Action(_KINDS[match["kind"]], owner, hook, target)
    return Action("other", "", action_name)


def is_overridden(target: Any, hook: str) -> bool:
    """Whether a callback's or module's hook does anything: it is not just the one inherited from Lightning's base."""
    if hook in vars(target):
        return True
    base = _base_class(type(target), ("Callback", "LightningModule", "LightningDataModule"))
    return base is None or getattr(type(target), hook, None) is not getattr(base, hook, None)


def is_progress_bar(callback: Any) -> bool:
    """Whether a callback is one of Lightning's progress bars or derives from one."""
    return _base_class(type(callback), ("ProgressBar",)) is not None


def is_checkpoint_callback(callback: Any) -> bool:
    """Whether a callback saves checkpoints (derives from Lightning's ``Checkpoint``)."""
    return _base_class(type(callback), ("Checkpoint",)) is not None


def _base_class(cls: type, names: tuple[str, ...]) -> type | None:
    for base in reversed(cls.__mro__):
        if base.__name__ in names and base.__module__.startswith(_LIGHTNING_PACKAGES):
            return base
    return None


# -- the profiler seam ------------------------------------------------------------


def tap_profiler(trainer: Any, span_for: SpanFor) -> Undo | None:
    """Puts a delegating profiler in front of the user's, so that each action enters the span that belongs to it.

    Lightning's loops wrap every hook in ``trainer.profiler.profile(name)``. Where the user has no profiler, the tap
    answers with the span itself instead of the generator that Lightning's pass-through profiler makes each time:
    measuring costs less than what it replaces. A user's own profiler sees all it saw before.

    Args:
        trainer: The Trainer.
        span_for: Called once for each action's name.

    Returns:
        The undo; None when this Trainer has no profiler that can be tapped.
    """
    inner = getattr(trainer, "profiler", None)
    base = _base_class(type(inner), ("Profiler",))
    if inner is None or base is None:
        return None
    tap = _tap_class(base)(inner, span_for)
    trainer.profiler = tap

    def undo() -> None:
        tap.release()
        if trainer.profiler is tap:
            trainer.profiler = inner

    return undo


@cache
def _tap_class(base: type) -> Any:
    """The delegating profiler, derived from the ``Profiler`` of whichever namespace the Trainer is from."""

    class ProfilerTap(base):  # type: ignore[misc]
        """Stands in for ``trainer.profiler``; whatever is not measured here is asked of the inner profiler."""

        def __init__(self, inner: Any, span_for: SpanFor) -> None:
            # Not super().__init__(): all state is the inner profiler's.
            spans = _Spans(inner, span_for)
            own = {"_inner": inner, "_spans": spans, "profile": spans.__getitem__}
            self.__dict__.update(own)

        def start(self, action_name: str) -> None:
            if not self._spans.is_inner_silent:
                self._inner.start(action_name)
            self._spans.own(action_name).__enter__()

        def stop(self, action_name: str) -> None:
            self._spans.own(action_name).__exit__(None, None, None)
            if not self._spans.is_inner_silent:
                self._inner.stop(action_name)

        def release(self) -> None:
            """From now on only the inner profiler is asked, should anyone have kept this one."""
            inner = self._inner
            self.__dict__.update(profile=inner.profile, start=inner.start, stop=inner.stop)

        def setup(self, *args: Any, **kwargs: Any) -> None:
            self._inner.setup(*args, **kwargs)

        def teardown(self, *args: Any, **kwargs: Any) -> None:
            self._inner.teardown(*args, **kwargs)

        def describe(self) -> None:
            self._inner.describe()

        def summary(self) -> str:
            return str(self._inner.summary())

        def __getattr__(self, name: str) -> Any:
            inner = self.__dict__.get("_inner")
            if inner is None:  # while a copy is being made
                raise AttributeError(name)
            return getattr(inner, name)

        def __reduce__(self) -> Any:
            """Copies and pickles as the user's profiler: loaders that spawn workers may take the Trainer along."""
            return _as_is, (self.__dict__["_inner"],)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self._inner, name, value)

        def __del__(self) -> None:
            """The inner profiler's own ``__del__`` tears it down when its time has come."""

    return ProfilerTap


def _as_is(inner: Any) -> Any:
    return inner


class _Spans(dict[str, "AbstractContextManager[Any]"]):
    """Action name → what to enter for it. Looking up is all that ``profile`` does after the first time."""

    def __init__(self, inner: Any, span_for: SpanFor) -> None:
        super().__init__()
        self.inner = inner
        self.is_inner_silent = type(inner).__name__ == "PassThroughProfiler"
        self._span_for = span_for
        self._own: dict[str, AbstractContextManager[None]] = {}

    def __missing__(self, action_name: str) -> AbstractContextManager[Any]:
        span = self.own(action_name)
        context = span if self.is_inner_silent else _SpanAndProfile(span, self.inner, action_name)
        self[action_name] = context
        return context

    def own(self, action_name: str) -> AbstractContextManager[None]:
        """The span alone, for actions that are started and stopped by hand."""
        span = self._own.get(action_name)
        if span is None:
            span = self._own[action_name] = self._span_for(action_name)
        return span


class _SpanAndProfile:
    """Enters the user's profiler, then the span; reused for every call, since it keeps its open contexts on a stack."""

    __slots__ = ("action_name", "inner", "open", "outer")

    def __init__(self, span: AbstractContextManager[None], inner: Any, action_name: str) -> None:
        self.outer = span
        self.inner = inner
        self.action_name = action_name
        self.open: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> Any:
        context = self.inner.profile(self.action_name)
        entered = context.__enter__()
        self.open.append(context)
        self.outer.__enter__()
        return entered

    def __exit__(self, *exception: Any) -> Any:
        self.outer.__exit__(*exception)
        return self.open.pop().__exit__(*exception)


# -- methods wrapped on their instance ------------------------------------------------------------


_EVALUATIONS = ("validate", "test")


class _Timed:
    """A method inside a span. Copies and pickles as the plain method, so that its owner stays picklable."""

    def __init__(self, owner: Any, name: str, span: AbstractContextManager[None]) -> None:
        self._owner, self._name, self._thread = owner, name, get_ident()
        self.__wrapped__ = getattr(owner, name)
        self.__name__ = name
        self.__doc__ = getattr(self.__wrapped__, "__doc__", None)
        self.span: AbstractContextManager[None] | None = span

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
    """Calls what it was given the first time, and never again."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class _TimedFromFirst(_Timed):
    """A method inside a span, whose first call has something else done before."""

    def __init__(self, owner: Any, name: str, span: AbstractContextManager[None], first: _Once) -> None:
        super().__init__(owner, name, span)
        self._first = first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_measuring():
            self._first()
        return super().__call__(*args, **kwargs)


class _TimedLogMetrics(_Timed):
    """``logger.log_metrics`` inside a span, with the doctor's own figures added once when there are new ones."""

    def __init__(
        self, owner: Any, name: str, span: AbstractContextManager[None], more_metrics: Callable[[Any], dict[str, float]]
    ) -> None:
        super().__init__(owner, name, span)
        self._more_metrics = more_metrics

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        more = self._more_metrics(self._owner) if self.is_measuring() else None
        if more:
            if "metrics" in kwargs:
                kwargs["metrics"] = {**more, **kwargs["metrics"]}
            elif args and isinstance(args[0], dict):
                args = ({**more, **args[0]}, *args[1:])
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


def _put(timed: _Timed) -> Undo:
    owner, name = timed._owner, timed._name
    had_own = name in vars(owner)
    setattr(owner, name, timed)

    def undo() -> None:
        timed.span = None  # inert, should someone have wrapped it again
        if vars(owner).get(name) is timed:
            if had_own:
                setattr(owner, name, timed.__wrapped__)
            else:
                delattr(owner, name)

    return undo


def tap_logging(
    trainer: Any,
    collecting: AbstractContextManager[None],
    logger_span: Callable[[str, str], AbstractContextManager[None]],
    more_metrics: Callable[[Any], dict[str, float]],
) -> Undo | None:
    """Times metric collection (``self.log``, ``metrics``, ``.item()`` for the progress bar) and every logger.

    Of ``self.log`` it is what updates the values collected: its checks of arguments stay with the hook that logs.
    Before the first value there is nothing to collect, and the collection is not timed: who logs nothing pays nothing.

    Args:
        trainer: The Trainer.
        collecting: The span of Lightning's logger connector.
        logger_span: (logger's class name, method) → its span.
        more_metrics: Asked before each ``logger.log_metrics`` for figures to log along with it; an empty dict for none.

    Returns:
        The undo; None when this version has no logger connector that takes attributes.
    """
    connector = getattr(trainer, "_logger_connector", None)
    if not hasattr(connector, "__dict__"):
        return None
    methods = (
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
    results = list(_result_collections(trainer))
    put = ExitStack()

    def collect() -> None:
        for method in methods:
            if callable(getattr(connector, method, None)):
                put.callback(_put(_Timed(connector, method, collecting)))

    try:
        if not results:
            collect()
        else:
            first = _Once(collect)
            for one in results:
                put.callback(_put(_TimedFromFirst(one, "log", collecting, first)))
        for logger in loggers:
            kind = type(logger).__name__
            span = logger_span(kind, "log_metrics")
            put.callback(_put(_TimedLogMetrics(logger, "log_metrics", span, more_metrics)))
            put.callback(_put(_Timed(logger, "save", logger_span(kind, "save"))))
    except BaseException:
        put.close()  # those before the one that failed are put back
        raise
    return put.close


def _result_collections(trainer: Any) -> Iterator[Any]:
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


def tap_progress_bar(trainer: Any, more: Callable[[], dict[str, str]]) -> Undo | None:
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
    return _put(_MoreBarMetrics(bar, more))


def tap_validation(trainer: Any, around: AbstractContextManager[None]) -> Undo | None:
    """Encloses every run of the validation loop inside fit, the sanity check's too; None when it is not to be found."""
    loop = getattr(getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None), "val_loop", None)
    if loop is None or not callable(getattr(loop, "run", None)):
        return None
    return _put(_Timed(loop, "run", around))


def tap_backward(trainer: Any, span: AbstractContextManager[None]) -> Undo | None:
    """Encloses ``strategy.backward``, which manual optimization calls without announcing an action."""
    strategy = getattr(trainer, "strategy", None)
    if strategy is None or not callable(getattr(strategy, "backward", None)):
        return None
    return _put(_Timed(strategy, "backward", span))


def tap_reduce(trainer: Any, span: AbstractContextManager[None]) -> Undo | None:
    """Encloses ``strategy.reduce``, by which metrics logged with ``sync_dist=True`` are reduced over the ranks."""
    strategy = getattr(trainer, "strategy", None)
    if strategy is None or not callable(getattr(strategy, "reduce", None)):
        return None
    return _put(_Timed(strategy, "reduce", span))


def tap_sigterm_broadcast(trainer: Any, span: AbstractContextManager[None]) -> Undo | None:
    """Encloses the broadcast with which every training step of a run on several ranks begins; None before 2.6."""
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    if loop is None or not callable(getattr(loop, "_broadcast_sigterm_tensor", None)):
        return None
    return _put(_Timed(loop, "_broadcast_sigterm_tensor", span))


def tap_optimizers(
    optimizers: Iterable[Any], span: AbstractContextManager[None], after_step: Callable[[Any], None]
) -> Undo:
    """Encloses every ``optimizer.step`` by torch's step hooks: also of optimizers used without Lightning's wrapper."""

    def before(*_: Any) -> None:
        span.__enter__()

    def after(used: Any, *_: Any) -> None:
        span.__exit__(None, None, None)
        after_step(used)

    with ExitStack() as put:
        for optimizer in optimizers:
            put.callback(optimizer.register_step_pre_hook(before).remove)
            put.callback(optimizer.register_step_post_hook(after).remove)
        return put.pop_all().close


# -- hooks that have nothing left to do ----------------------------------------------------------


def silence_hooks(callback: Any, hooks: Iterable[str]) -> Undo:
    """Lets Lightning pass over hooks of a callback: it calls, and announces, only what is callable.

    Args:
        callback: The callback.
        hooks: Names of hooks; one that the instance has of its own stays as it is.

    Returns:
        The undo.
    """
    names = [hook for hook in hooks if hook not in vars(callback)]
    for name in names:
        setattr(callback, name, None)

    def undo() -> None:
        for name in names:
            if vars(callback).get(name, callback) is None:
                delattr(callback, name)

    return undo


# -- small readings ------------------------------------------------------------


def logged_step(trainer: Any) -> int:
    """The step number that Lightning gives its loggers now."""
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    step = getattr(loop, "_batches_that_stepped", None)
    return int(step) if step is not None else int(trainer.global_step)


# -- what is set ------------------------------------------------------------


def user_profiler(trainer: Any) -> Any | None:
    """The profiler that the user gave, also while ours stands in front; None when there is none."""
    profiler = getattr(trainer, "profiler", None)
    if type(profiler).__name__ == "ProfilerTap":
        profiler = vars(profiler)["_inner"]
    return None if type(profiler).__name__ == "PassThroughProfiler" else profiler


def is_anomaly_detection_asked(trainer: Any) -> bool | None:
    """``Trainer(detect_anomaly=...)``, which takes effect only once a loop runs."""
    is_asked = getattr(trainer, "_detect_anomaly", None)
    return None if is_asked is None else bool(is_asked)


def ddp_arguments(strategy: Any) -> dict[str, Any] | None:
    """What will be passed to torch's DistributedDataParallel; None when the strategy is not a DDP one."""
    arguments = getattr(strategy, "_ddp_kwargs", None)
    return dict(arguments) if isinstance(arguments, dict) else None


def refreshes_by_step(progress_bar: Any) -> bool:
    """Whether the bar's ``refresh_rate`` counts steps; that of RichProgressBar is per second from Lightning 2.6 on."""
    return hasattr(progress_bar, "_should_update")


def user_batch_sampler(batch_sampler: Any) -> Any:
    """The batch sampler inside the wrapper that notes indices for ``trainer.predict``; any other as it is."""
    if type(batch_sampler).__name__ == "_IndexBatchSamplerWrapper":
        return getattr(batch_sampler, "_batch_sampler", batch_sampler)
    return batch_sampler


def step_logging(trainer: Any) -> tuple[int, bool] | None:
    """How many metrics the bar shows each step, and whether any logged on a step is reduced over ranks.

    None before the first ``self.log`` of training, and where this version does not tell. No value is read.
    """
    results = getattr(getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None), "_results", None)
    if not isinstance(results, dict) or not results:
        return None
    metas = [meta for meta in (getattr(result, "meta", None) for result in results.values()) if meta is not None]
    on_step = [meta for meta in metas if meta.on_step]
    return sum(bool(meta.prog_bar) for meta in on_step), any(meta.sync.should for meta in on_step)


def live_console(trainer: Any) -> Any | None:
    """The rich console of a live RichProgressBar, which makes room for what is printed through it; None without one."""
    progress = getattr(getattr(trainer, "progress_bar_callback", None), "progress", None)
    return getattr(progress, "console", None)


# -- a training that is there to be measured only ------------------------------------------------------------


def stop_fit(trainer: Any) -> None:
    """Ends ``fit`` now, from within a hook, as Lightning's own tuner does: teardown hooks run, nothing else does.

    ``should_stop`` alone would validate once more, save checkpoints and ask callbacks for metrics that do not exist
    yet. It is what is left where the processes that train were spawned by this one, which would take the tuner's way
    out for a crash.

    Raises:
        Exception: Lightning's own, which ``fit`` catches.
    """
    trainer.should_stop = True
    launcher = getattr(getattr(trainer, "strategy", None), "launcher", None)
    if type(launcher).__name__ in ("_MultiProcessingLauncher", "_XLALauncher"):
        return
    module = sys.modules.get(f"{namespace(trainer)}.utilities.exceptions")
    leave = getattr(module, "_TunerExitException", None)
    if leave is not None:
        raise leave


def redirected_logger(logger: Any, folder: str, package: str) -> Any:
    """A logger that leaves the user's files and services alone.

    Those that write TensorBoard or CSV files go on writing them, below ``folder``: they cost what they cost. Others may
    send or store what they get anywhere, so a logger that swallows all of it takes their place.

    Args:
        logger: The user's.
        folder: Where files may go.
        package: ``lightning.pytorch`` or ``pytorch_lightning``.
    """
    if _base_class(type(logger), ("TensorBoardLogger", "CSVLogger")) is not None:
        own = vars(logger)
        places = [name for name in ("_root_dir", "_save_dir") if name in own]
        if places and all(str(own[name]) != folder for name in places):
            for name in places:
                setattr(logger, name, folder)
            if "_experiment" in own:  # made for the user's folder, if at all
                logger._experiment = None
        if places:
            return logger
    dummy: Any = importlib.import_module(f"{package}.loggers.logger").DummyLogger
    if isinstance(logger, dummy):
        return logger
    silent = dummy()
    silent._experiment = Silent()
    return silent


class Silent:
    """Stands in for a service's run: whatever is asked of it, it is there and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __str__(self) -> str:
        return ""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass


def lead_loggers_away(folder: str, package: str) -> None:
    """Lets Lightning's loggers keep to a folder from their making on: a script may use one before it has a Trainer.

    Those that write files write them below the folder; the run of a service is never begun. It is not undone: for
    processes that only measure.

    Args:
        folder: Where files may go.
        package: ``lightning.pytorch`` or ``pytorch_lightning``.
    """
    loggers = importlib.import_module(f"{package}.loggers")
    base = importlib.import_module(f"{package}.loggers.logger").Logger
    classes: set[Any] = {one for one in vars(loggers).values() if isinstance(one, type) and issubclass(one, base)}
    for cls in classes - {base}:
        if cls.__name__ in ("TensorBoardLogger", "CSVLogger"):
            cls.__init__ = _led_away(cls.__init__, folder, package)
        elif "experiment" in vars(cls):
            cls.experiment = property(lambda _: Silent())


def _led_away(original: Callable[..., None], folder: str, package: str) -> Callable[..., None]:
    @functools.wraps(original)
    def init(logger: Any, *args: Any, **kwargs: Any) -> None:
        original(logger, *args, **kwargs)
        redirected_logger(logger, folder, package)

    return init


def wrap_checkpoint_io(trainer: Any, save: Callable[..., Any], remove: Callable[..., Any]) -> Undo | None:
    """Puts functions in the place of ``strategy.save_checkpoint`` and ``strategy.remove_checkpoint``.

    Args:
        trainer: The Trainer.
        save: Called with Lightning's own method and its arguments.
        remove: Likewise.
    """
    strategy = getattr(trainer, "strategy", None)
    if strategy is None or "save_checkpoint" in vars(strategy):
        return None
    strategy.save_checkpoint = functools.partial(save, strategy.save_checkpoint)
    strategy.remove_checkpoint = functools.partial(remove, strategy.remove_checkpoint)

    def undo() -> None:
        for name in ("save_checkpoint", "remove_checkpoint"):
            vars(strategy).pop(name, None)

    return undo


# -- changing a run ------------------------------------------------------------


def namespace(trainer: Any) -> str:
    """``"lightning.pytorch"`` or ``"pytorch_lightning"``: where the Trainer's class comes from."""
    base = _base_class(type(trainer), ("Trainer",))
    return "pytorch_lightning" if base is not None and base.__module__.startswith("pytorch_l") else "lightning.pytorch"


def is_fitting(trainer: Any) -> bool:
    """Whether the Trainer is in ``fit``."""
    function = getattr(getattr(trainer, "state", None), "fn", None)
    return getattr(function, "value", function) == "fit"


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
        return self.exchanged(loader)

    def exchanged(self, loader: Any) -> Any:
        assert self.change is not None
        new = self.change(loader)
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


def exchange_train_loaders(trainer: Any, change: Callable[[Any], Any]) -> Undo | None:
    """Exchanges the training loaders of a fit between two epochs, in ``on_train_epoch_start``.

    Args:
        trainer: The Trainer, at the start of an epoch after the first one, whose loaders Lightning starts after this.
        change: Called with each training loader, and again with those that Lightning asks the user for in later epochs
            (``reload_dataloaders_every_n_epochs``). What it raises reaches the caller, with nothing changed.

    Returns:
        The undo; None when this version of Lightning keeps its loaders elsewhere.
    """
    combined = getattr(getattr(trainer, "fit_loop", None), "_combined_loader", None)
    if combined is None or not hasattr(combined, "flattened"):
        return None
    exchange = _LoaderExchange(trainer, change)
    try:
        loaders = [exchange.exchanged(loader) for loader in combined.flattened]
    except BaseException:
        exchange.undo()
        raise
    combined.reset()  # ends the workers of those before
    combined.flattened = loaders
    return exchange.undo


def change_attribute(owner: Any, name: str, value: Any) -> Undo:
    """Sets an instance's attribute until it is undone; something set since then is left alone."""
    had_own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)

    def undo() -> None:
        if name in vars(owner) and vars(owner)[name] is value:
            if had_own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)

    return undo


def change_refresh_rate(trainer: Any, n_steps: int) -> Undo | None:
    """Lets the progress bar show itself every ``n_steps``; None when there is none, or one that refreshes by time."""
    bar = getattr(trainer, "progress_bar_callback", None)
    if bar is None or not refreshes_by_step(bar):
        return None
    name = "_refresh_rate" if "_refresh_rate" in vars(bar) else "refresh_rate"
    return change_attribute(bar, name, n_steps) if name in vars(bar) else None


def stop_anomaly_detection(trainer: Any) -> Undo | None:
    """Takes ``detect_anomaly`` out of a Trainer that is not yet training; None when this version does not keep it."""
    return change_attribute(trainer, "_detect_anomaly", False) if hasattr(trainer, "_detect_anomaly") else None


def change_ddp_arguments(strategy: Any, arguments: dict[str, Any]) -> Undo | None:
    """Changes what torch's DistributedDataParallel will be given; None when the strategy is not a DDP one."""
    before = ddp_arguments(strategy)
    if before is None:
        return None
    strategy._ddp_kwargs = {**before, **arguments}

    def undo() -> None:
        strategy._ddp_kwargs = before

    return undo


def compile_module(trainer: Any, module: Any, options: dict[str, Any]) -> Undo | None:
    """Compiles a LightningModule in place, as ``trainer.fit(torch.compile(module))`` does; None when it is compiled.

    Args:
        trainer: The Trainer, whose namespace the module is of.
        module: The LightningModule.
        options: Keyword arguments of ``torch.compile``.

    Returns:
        The undo.
    """
    import torch

    if getattr(module, "_compiler_ctx", None) is not None:
        return None
    lightning = importlib.import_module(f"{namespace(trainer)}.utilities.compile")
    methods = ("forward", "training_step", "validation_step", "test_step", "predict_step")
    names = set(vars(module))
    before = {name: vars(module)[name] for name in methods if name in names}
    lightning.from_compiled(torch.compile(module, **options))
    added = set(vars(module)) - names  # besides the methods what Lightning and torch note down

    def undo() -> None:
        if module._compiler_ctx is None:
            return
        lightning.to_uncompiled(module)
        for name in {*methods, *added}:  # Lightning leaves the plain methods as attributes of the instance
            vars(module).pop(name, None)
        vars(module).update(before)

    return undo


def write_checkpoints_beside(trainer: Any) -> Undo | None:
    """Lets a thread write checkpoints; None where something else than Lightning's plain way writes them."""
    strategy = trainer.strategy
    before = getattr(strategy, "_checkpoint_io", None)
    if before is not None and type(before).__name__ != "TorchCheckpointIO":
        return None
    plugins = importlib.import_module(f"{namespace(trainer)}.plugins.io")
    beside = plugins.AsyncCheckpointIO(before if before is not None else plugins.TorchCheckpointIO())
    strategy.checkpoint_io = beside

    def undo() -> None:
        beside.teardown()  # waits for what is being written
        if getattr(strategy, "_checkpoint_io", None) is beside:
            strategy._checkpoint_io = before

    return undo
