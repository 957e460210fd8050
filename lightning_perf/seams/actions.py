"""Lightning's classes in either namespace, the actions that its loops announce, and the stage of a Trainer."""

import math
import os
import re
from collections.abc import Iterator
from inspect import getattr_static, unwrap
from itertools import takewhile
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_LIGHTNING_PACKAGES = ("lightning.pytorch.", "pytorch_lightning.", "lightning.fabric.loggers.",
                       "lightning_fabric.loggers.")  # fmt: skip


class Action(NamedTuple):
    """A parsed action name.

    Attributes:
        kind: ``callback``, ``module``, ``datamodule``, ``strategy``, ``fetch`` or ``other``.
        owner: Class name; for a fetch the stage: ``train``, ``val``, ``test`` or ``predict``.
        target: The callback; None for other kinds.
    """

    kind: str
    owner: str
    hook: str
    target: Any = None


_ACTION = re.compile(
    r"\[(?P<kind>Callback|LightningModule|LightningDataModule|Strategy)\](?P<who>.*)\.(?P<hook>\w+)", re.S
)
_FETCH = re.compile(r"\[\w+\]\.(train|val|test|predict)(_dataloader)?_next")
_KINDS = {"Callback": "callback", "LightningModule": "module", "LightningDataModule": "datamodule",
          "Strategy": "strategy"}  # fmt: skip


def describe_action(trainer: Any, action_name: str) -> Action:
    """Parse an action's name; a name of unknown form is kind ``other``."""
    if match := _FETCH.fullmatch(action_name):
        return Action("fetch", match[1], "next")
    if match := _ACTION.fullmatch(action_name):
        who, hook = match["who"], match["hook"]
        target = _callback_of(trainer.callbacks, who) if match["kind"] == "Callback" else None
        owner = type(target).__name__ if target is not None else re.split(r"\W", who)[0] or who
        return Action(_KINDS[match["kind"]], owner, hook, target)
    return Action("other", "", action_name)


def is_overridden(target: Any, hook: str) -> bool:
    """Return whether a callback or module overrides a hook of Lightning's base class."""
    if hook in vars(target):
        return True
    base = base_class(type(target), ("Callback", "LightningModule", "LightningDataModule"))
    return base is None or getattr_static(type(target), hook, None) is not getattr_static(base, hook, None)


def calls_clip_gradients(module: Any) -> bool:
    """Return whether a method of the user's calls ``clip_gradients``, as manual optimization does."""
    return any(_has_name(code, "clip_gradients") for _, code in _own_methods(module))


def site_of_method(module: Any, method: str) -> str:
    """Return file and first line of a method of the user's, e.g. ``"model.py:31"``; empty without one."""
    code = next((code for name, code in _own_methods(module) if name == method and isinstance(code, CodeType)), None)
    return "" if code is None else f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _own_methods(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and code of the methods that the classes of a module add to Lightning's, overriding ones first."""
    base = base_class(type(module), ("LightningModule",))
    for one in takewhile(lambda each: each is not base, type(module).__mro__):
        for name, each in vars(one).items():
            if isinstance(each, FunctionType):
                yield name, getattr(unwrap(each), "__code__", None)


def _has_name(code: Any, name: str) -> bool:
    """Return whether code, or a function defined in it, uses a name."""
    is_code = isinstance(code, CodeType)
    return is_code and (name in code.co_names or any(_has_name(each, name) for each in code.co_consts))


def _callback_of(callbacks: list[Any], key: str) -> Any | None:
    """Return the callback of a state key, or another one of its class; None if the class is ambiguous.

    State keys that a user's class computes are not read, because that runs user code. If only one class computes its
    keys, a key that no other callback has belongs to it.
    """
    unknown = []
    for callback in callbacks:
        defined = getattr_static(type(callback), "state_key", None)
        if isinstance(defined, property):
            getter = defined.fget
            if not getattr(getter, "__module__", "").startswith((*_LIGHTNING_PACKAGES, "lightning_perf.")):
                unknown.append(callback)
                continue
            defined = defined.__get__(callback)
        if defined == key:
            return callback
    return unknown[0] if len(set(map(type, unknown))) == 1 else None


def is_progress_bar(callback: Any) -> bool:
    """Return whether a callback is one of Lightning's progress bars or derives from one."""
    return base_class(type(callback), ("ProgressBar",)) is not None


def is_checkpoint_callback(callback: Any) -> bool:
    """Return whether a callback saves checkpoints (derives from Lightning's ``Checkpoint``)."""
    return base_class(type(callback), ("Checkpoint",)) is not None


def last_checkpoint(trainer: Any) -> str | None:
    """Return the path of the latest checkpoint that this run wrote; None if there is none."""
    known = [vars(each) for each in trainer.callbacks if base_class(type(each), ("ModelCheckpoint",)) is not None]
    paths = {each.get(name) for each in known for name in ("last_model_path", "best_model_path")}
    written = {path: os.path.getmtime(path) for path in paths if type(path) is str and os.path.exists(path)}
    return max(written, key=written.__getitem__, default=None)


def time_left_s(trainer: Any) -> float:
    """Return the seconds until Lightning's own ``Timer``, which ``max_time`` adds, ends a fit; infinity without one."""
    timers: list[Any] = [each for each in trainer.callbacks if base_class(type(each), ("Timer",)) is type(each)]
    return min((left for each in timers if (left := each.time_remaining()) is not None), default=math.inf)


def monitored_metrics(trainer: Any) -> set[str]:
    """Return the names of logged values that callbacks and schedulers read, as they were given to ``self.log``."""
    schedulers = [each for each in getattr(trainer, "lr_scheduler_configs", ()) if each.reduce_on_plateau]
    readers = (*getattr(trainer, "callbacks", ()), *schedulers)
    given = [getattr_static(each, "monitor", None) for each in readers]
    names = {each for each in given if isinstance(each, str)}
    return names | {each.removesuffix("_step").removesuffix("_epoch") for each in names}


def base_class(cls: type, names: tuple[str, ...]) -> type | None:
    """Return Lightning's class with one of these names that a class is or derives from; None without one."""
    for base in reversed(cls.__mro__):
        if base.__name__ in names and base.__module__.startswith(_LIGHTNING_PACKAGES):
            return base
    return None


def namespace(thing: Any) -> str:
    """Return ``"lightning.pytorch"`` or ``"pytorch_lightning"``, the origin of a Trainer or callback."""
    base = base_class(type(thing), ("Trainer", "Callback"))
    return "pytorch_lightning" if base is not None and base.__module__.startswith("pytorch_l") else "lightning.pytorch"


def has_trainer(trainer: Any) -> bool:
    """Return whether this is a Trainer, not the stand-in for a loop of the user's own."""
    return not getattr(trainer, "is_stand_in", False)


def epoch_loop(trainer: Any) -> Any | None:
    """Return the loop of training batches; None if this version has no such loop."""
    return getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)


def is_fitting(trainer: Any) -> bool:
    """Return whether the Trainer is in ``fit``."""
    function = getattr(getattr(trainer, "state", None), "fn", None)
    return getattr(function, "value", function) == "fit"
